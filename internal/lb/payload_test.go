package lb

import (
	"strings"
	"testing"
)

// TestPayloadHex: hexadecimal digits of either case are decoded to bytes, and invalid ones are
// refused with the fault.
func TestPayloadHex(t *testing.T) {
	const head = "kind: Service\nname: s\nvip: 203.0.113.10\nendpoints:\n- protocol: tcp\n  port: 80\n  backends: [{dip: 10.20.1.11, host: 10.20.1.1}]\n  health: "
	for health, want := range map[string]string{
		`{tcp: {sendHex: "0D0aFF", expectHex: "00"}}`:            "",
		`{udp: {sendHex: "80"}}`:                                 "",
		`{tcp: {sendHex: "0d0"}}`:                                "health.tcp.sendHex: 0d0: must be 1 to 1024 bytes of two hexadecimal digits each, such as \"0d0a\": 3 digits are an odd number",
		`{tcp: {expectHex: "0x0d"}}`:                             "health.tcp.expectHex: 0x0d: must be 1 to 1024 bytes of two hexadecimal digits each, such as \"0d0a\": character 2 is no digit",
		`{tcp: {send: a, sendHex: "61"}}`:                        "health.tcp.sendHex: 61: must be left out beside",
		`{udp: {expectHex: "61"}}`:                               "health.udp.send: is missing",
		`{tcp: {sendHex: ""}}`:                                   "health.tcp.sendHex: must be 1 to 1024 bytes",
		`{tcp: {sendHex: "61"}, engine: packet}`:                 "health.engine: packet: must be socket or left out",
		`{tcp: {sendHex: "` + strings.Repeat("61", 1025) + `"}}`: "health.tcp.sendHex: ",
	} {
		docs, err := Parse(strings.NewReader(head+health+"\n"), "f")
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", health, err)
				continue
			}
			c := docs[0].(*Service).Endpoints[0].Health.Checks[0]
			if c.Kind == CheckTCP && (c.Sent() != "\r\n\xff" || c.Expected() != "\x00" || c.SendHex != "0d0aff") || c.Kind == CheckUDP && c.Sent() != "\x80" {
				t.Errorf("%s: %+v", health, c)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", health, err, want)
		}
	}
}

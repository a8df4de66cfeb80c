package load

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseSaid(t *testing.T) {
	for line, want := range map[string]Said{
		"10.20.1.11:8080 0.75":                {netip.MustParseAddrPort("10.20.1.11:8080"), 0.75},
		" 10.20.1.11\t3 ":                     {netip.AddrPortFrom(netip.MustParseAddr("10.20.1.11"), 0), 3},
		"[2001:db8::1]:80 1e3":                {netip.MustParseAddrPort("[2001:db8::1]:80"), 1000},
		"2001:db8::1 0":                       {netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), 0), 0},
		"[::ffff:10.20.1.11]:8080 1000000000": {netip.MustParseAddrPort("10.20.1.11:8080"), 1e9},
		"10.20.1.11 +.5":                      {netip.AddrPortFrom(netip.MustParseAddr("10.20.1.11"), 0), 0.5},
	} {
		if got, err := ParseSaid(line); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		"": "line", "0.75": "line", "10.20.1.11 1 2": "line", "web 1": "server", "10.20.1.11:99999 1": "server", "10.20.1.11:x 1": "server",
		"10.20.1.11 -1": "load", "10.20.1.11 nan": "load", "10.20.1.11 inf": "load", "10.20.1.11 0x10": "load", "10.20.1.11 1_0": "load",
		"10.20.1.11 1000000001000": "load", "10.20.1.11 1e99": "load", "10.20.1.11 1,5": "load", "10.20.1.11 e": "load",
	} {
		if got, err := ParseSaid(line); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %+v, %v; must be refused for its %s", line, got, err, want)
		}
	}
}

// FuzzParseSaid: every accepted line is a valid load, and parses again from its text.
func FuzzParseSaid(f *testing.F) {
	for _, s := range []string{"10.20.1.11:8080 0.75", "2001:db8::1 1e3", "fe80::1%eth0 1", "[::]:0 0", "x", "1.2.3.4 -0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		said, err := ParseSaid(line)
		if err != nil {
			return
		}
		if l := (Load{Given: said.Given, Has: HasGiven}); !l.Valid() || !said.Server.Addr().IsValid() || said.Server.Addr().Is4In6() {
			t.Errorf("%q: %+v", line, said)
		}
	})
}

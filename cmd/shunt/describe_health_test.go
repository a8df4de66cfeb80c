package main

import (
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

func TestHealthInWords(t *testing.T) {
	const every = " every 1s, timeout 500ms; up after 2 good, down after 3 bad"
	for in, want := range map[string]string{
		"{}":                                    "check: TCP connect through the tunnel" + every,
		"{http: {path: /h, host: a}, port: 81}": "check: HTTP GET /h with host a at port 81" + every,
		"{tcp: {}, through: tunnel, engine: packet}":                                                    "check: TCP connect through the tunnel by packet" + every,
		`{tcp: {send: "PING\r\n", expect: "+PONG"}, fast: 100ms}`:                                       `check: TCP send "PING\r\n" expect "+PONG" every 1s (100ms while results change), timeout 500ms; up after 2 good, down after 3 bad`,
		`{https: {method: HEAD, status: [304, 200-299], headers: {A: b}, version: "2", verify: false}}`: "check: HTTPS/2 HEAD / with a header for status 200-299,304 without verification" + every,
		`{http: {body: "^ok"}, initial: up}`:                                                            `check: HTTP GET / for body "^ok"` + every + ", up at first",
		"{icmp: {}, address: 10.20.1.9}":                                                                "check: ICMP echo at 10.20.1.9" + every,
		"{grpc: {service: a.B, tls: {serverName: c}}, address: 10.20.1.9, port: 81}":                    "check: gRPC health of a.B over TLS as c at 10.20.1.9:81" + every,
		"{udp: {send: x}}":                                            `check: UDP send "x"` + every,
		`{http: {headers: {A: b, C: d}}}`:                             "check: HTTP GET / with 2 headers through the tunnel" + every,
		`{tcp: {sendHex: "00FF80", expectHex: "fffe"}}`:               "check: TCP send hex 00ff80 expect hex fffe" + every,
		`{tcp: {expectHex: "fffe"}}`:                                  "check: TCP expect hex fffe" + every,
		`{udp: {sendHex: "80", expect: x}}`:                           `check: UDP send hex 80 expect "x"` + every,
		"{dns: {name: example.com, answer: 192.0.2.1}}":               `check: DNS A of example.com for "192.0.2.1"` + every,
		"{external: {program: /opt/check, arguments: [a b]}}":         `check: program /opt/check "a b"` + every,
		"{checks: [{tcp: {}}, {icmp: {}}], from: host}":               "check: TCP connect" + every + "\ncheck: ICMP echo" + every + "\nhealth: all checks must be good, hosts check",
		"{checks: [{tcp: {}}, {icmp: {}}], combine: any, from: both}": "check: TCP connect through the tunnel" + every + "\ncheck: ICMP echo" + every + "\nhealth: any check must be good, hosts and muxes check",
		"{checks: [{tcp: {}}, {icmp: {}}], combine: {atLeast: 1}, panicBelow: 30, damping: {}}": "check: TCP connect through the tunnel" + every + "\ncheck: ICMP echo" + every +
			"\nhealth: 1 of 2 checks must be good, all backends count as healthy below 30 %, held down for 1m0s after more than 5 flips within 5m0s",
		"{from: host, minimumHealthy: 2, passive: {}}": "check: TCP connect" + every +
			"\nhealth: hosts check, advertised with at least 2 healthy, dead for 30s after 5 failed connections of clients within 10s",
	} {
		objects, err := lb.Parse(strings.NewReader("kind: Service\nname: web\nvip: 203.0.113.10\nendpoints:\n- {protocol: tcp, port: 80, backends: [{dip: 10.20.1.11, host: 10.20.1.1}, {dip: 10.20.2.11, host: 10.20.2.1}], health: "+in+"}"), "test")
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		d := &description{w: &out}
		d.health(&objects[0].(*lb.Service).Endpoints[0].Health)
		if got := strings.TrimSpace(strings.ReplaceAll(out.String(), "\n  ", "\n")); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", in, got, want)
		}
	}
}

package lb_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestWayByDefault: checks take the path of client packets by default where the probe means the
// same there, and a given path is never replaced.
func TestWayByDefault(t *testing.T) {
	const tunnel, direct = lb.ThroughTunnel, lb.ThroughDirect
	for _, c := range []struct {
		name, endpoint string
		want           []string
	}{
		{"no health", "{protocol: tcp, port: 80, BACKENDS}", []string{tunnel}},
		{"tcp", "{protocol: tcp, port: 80, BACKENDS, health: {tcp: {}}}", []string{tunnel}},
		{"http", "{protocol: tcp, port: 80, BACKENDS, health: {http: {method: HEAD}}}", []string{tunnel}},
		{"engine packet", "{protocol: tcp, port: 80, BACKENDS, health: {engine: packet}}", []string{tunnel}},
		{"rewrite none", "{protocol: tcp, port: 8080, rewrite: none, BACKENDS}", []string{tunnel}},
		{"from both", "{protocol: tcp, port: 80, BACKENDS, health: {from: both}}", []string{tunnel}},
		{"any", "{protocol: any, BACKENDS-ALL, health: {port: 80}}", []string{tunnel}},
		{"a range", "{protocol: tcp, port: 8000-8100, BACKENDS-ALL}", []string{tunnel}},
		{"in a range", "{protocol: tcp, port: 8000-8100, BACKENDS-ALL, health: {port: 8100}}", []string{tunnel}},
		{"the port of the backends", "{protocol: tcp, port: 80, BACKENDS, health: {port: 8080}}", []string{tunnel}},
		{"the same port", "{protocol: tcp, port: 8080, BACKENDS, health: {port: 8080}}", []string{tunnel}},
		{"several", "{protocol: tcp, port: 80, BACKENDS, health: {checks: [{tcp: {}}, {icmp: {}}, {http: {}, port: 81}]}}", []string{tunnel, direct, direct}},
		{"given", "{protocol: tcp, port: 80, BACKENDS, health: {through: direct}}", []string{direct}},
		{"given for several", "{protocol: tcp, port: 80, BACKENDS, health: {through: direct, checks: [{tcp: {}}, {http: {}, through: tunnel}]}}", []string{direct, tunnel}},

		{"path nat", "{protocol: tcp, port: 80, path: nat, BACKENDS}", []string{direct}},
		{"udp", "{protocol: udp, port: 53, BACKENDS}", []string{direct}},
		{"quic", "{protocol: quic, port: 443, BACKENDS}", []string{direct}},
		{"from host", "{protocol: tcp, port: 80, BACKENDS, health: {from: host}}", []string{direct}},
		{"engine socket", "{protocol: tcp, port: 80, BACKENDS, health: {engine: socket}}", []string{direct}},
		{"an address", "{protocol: tcp, port: 80, BACKENDS, health: {address: 10.20.9.9}}", []string{direct}},
		{"another port of the server", "{protocol: tcp, port: 80, BACKENDS, health: {port: 80}}", []string{direct}},
		{"not of the range", "{protocol: tcp, port: 8000-8100, BACKENDS-ALL, health: {port: 8101}}", []string{direct}},
		{"tcp with text", "{protocol: tcp, port: 80, BACKENDS, health: {tcp: {send: x}}}", []string{direct}},
		{"a body", "{protocol: tcp, port: 80, BACKENDS, health: {http: {body: x}}}", []string{direct}},
		{"https", "{protocol: tcp, port: 80, BACKENDS, health: {https: {}}}", []string{direct}},
		{"HTTP/2", `{protocol: tcp, port: 80, BACKENDS, health: {http: {version: "2"}}}`, []string{direct}},
		{"grpc", "{protocol: tcp, port: 80, BACKENDS, health: {grpc: {}}}", []string{direct}},
		{"external", "{protocol: tcp, port: 80, BACKENDS, health: {external: {program: /x}}}", []string{direct}},
	} {
		text := strings.NewReplacer("BACKENDS-ALL", "backends: [{dip: 10.20.1.11, host: 10.20.1.1}]",
			"BACKENDS", "backends: [{dip: 10.20.1.11, port: 8080, host: 10.20.1.1}]").Replace(c.endpoint)
		objects, err := lb.Parse(strings.NewReader("kind: Service\nname: web\nvip: 203.0.113.10\nendpoints:\n- "+text+"\n"), "x.yaml")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		written := objects[0].(*lb.Service)
		if found := lb.Validate(written); len(found) > 0 {
			t.Errorf("%s: %s", c.name, texts(found))
		}
		for i, want := range c.want {
			if got := written.Endpoints[0].Health.Checks[i].Through; got != want {
				t.Errorf("%s: check %d goes %s, want %s", c.name, i, got, want)
			}
		}
		// Written back, it parses to the same value.
		again, err := lb.Parse(bytes.NewReader(lb.Marshal(written)), "y.yaml")
		if err != nil || !written.Endpoints[0].Health.Equal(again[0].(*lb.Service).Endpoints[0].Health) {
			t.Errorf("%s: %v\n%s", c.name, err, lb.Marshal(written))
		}
	}
}

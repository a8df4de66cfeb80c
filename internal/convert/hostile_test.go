package convert

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// hostile holds health specifications that must be refused, in YAML and in the JSON of the API,
// with the faulty field and the allowed values. json "": the same as yaml, which is also JSON. The
// path is empty if the fault is found before fields are read.
var hostile = []struct{ yaml, json, path, allowed string }{
	{`{tcp: {}, interval: -1s}`, `{"tcp":{},"interval":"-1s"}`, "health.interval", "must be"},
	{`{tcp: {}, interval: NaN}`, `{"tcp":{},"interval":"NaN"}`, "health.interval", "must be"},
	{`{tcp: {}, interval: .inf}`, `{"tcp":{},"interval":"Infinity"}`, "health.interval", "must be"},
	{`{tcp: {}, interval: 99999999999999999999h}`, `{"tcp":{},"interval":"99999999999999999999s"}`, "health.interval", "must be"},
	{`{tcp: {}, interval: 2562048h}`, `{"tcp":{},"interval":"9223372800s"}`, "health.interval", "must be"},
	{`{tcp: {}, interval: 99ms}`, `{"tcp":{},"interval":"0.099s"}`, "health.interval", "must be 100ms to 1h"},
	{`{tcp: {}, interval: 1s, timeout: -1ns}`, `{"tcp":{},"interval":"1s","timeout":"-0.000000001s"}`, "health.timeout", "must be"},
	{`{tcp: {}, interval: 1s, timeout: 2s}`, `{"tcp":{},"interval":"1s","timeout":"2s"}`, "health.timeout", "must be 1ms to the interval, 1s"},
	{`{tcp: {}, interval: 1s, fast: 1ms}`, `{"tcp":{},"interval":"1s","fast":"0.001s"}`, "health.fast", "must be 100ms to the interval"},
	{`{tcp: {}, rise: -1}`, `{"tcp":{},"rise":-1}`, "health.rise", "must be"},
	{`{tcp: {}, rise: 101}`, `{"tcp":{},"rise":101}`, "health.rise", "must be 1 to 100"},
	{`{tcp: {}, fall: 4294967296}`, `{"tcp":{},"fall":4294967296}`, "health.fall", "must be"},
	{`{tcp: {}, fall: 1e3}`, `{"tcp":{},"fall":1000}`, "health.fall", "must be 1 to 100"},
	{`{tcp: {}, jitter: 51}`, `{"tcp":{},"jitter":51}`, "health.jitter", "must be 1 to 50"},
	{`{tcp: {}, port: 65536}`, `{"tcp":{},"port":65536}`, "health.port", "must be 1 to 65535"},
	{`{tcp: {}, port: -1}`, `{"tcp":{},"port":-1}`, "health.port", "must be"},
	{`{tcp: {}, address: "fe80::1%eth0"}`, `{"tcp":{},"address":"fe80::1%eth0"}`, "health.address", "must not have a zone"},
	{`{tcp: {}, address: "::ffff:10.0.0.1"}`, `{"tcp":{},"address":"ff02::1"}`, "health.address", "must not be"},
	{`{http: {method: "GET\r\nX: y"}}`, `{"http":{"method":"GET\r\nX: y"}}`, "health.http.method", "must be a method such as GET"},
	{`{http: {method: CONNECT}}`, `{"http":{"method":"CONNECT"}}`, "health.http.method", "and not CONNECT"},
	{`{http: {path: "/ HTTP/1.1\r\nHost: x"}}`, `{"http":{"path":"/ HTTP/1.1\r\nHost: x"}}`, "health.http.path", "must begin with / and hold printable ASCII without spaces"},
	{`{http: {path: "/\0"}}`, `{"http":{"path":"/\u0000"}}`, "health.http.path", "must begin with /"},
	{`{http: {host: "a\r\nX: y"}}`, `{"http":{"host":"a\r\nX: y"}}`, "health.http.host", "must be a host name or an address"},
	{`{http: {headers: {X: "y\r\nZ: z"}}}`, `{"http":{"headers":["X: y\r\nZ: z"]}}`, "health.http.headers", "must"},
	{`{http: {headers: {"X: y\nZ": z}}}`, `{"http":{"headers":["X\nZ: z"]}}`, "health.http.headers", "must"},
	{`{http: {headers: {Content-Length: "5"}}}`, `{"http":{"headers":["Content-Length: 5"]}}`, "health.http.headers", "must not be Host, Content-Length"},
	{`{http: {headers: {Accept: a, accept: b}}}`, `{"http":{"headers":["Accept: a","accept: b"]}}`, "health.http.headers", "must not be given twice"},
	{`{http: {body: "["}}`, `{"http":{"body":"["}}`, "health.http.body", "must be a regular expression (RE2) of 1 to 1024 bytes"},
	{`{http: {body: "(((a{1000}){1000}){1000})"}}`, `{"http":{"body":"(((a{1000}){1000}){1000})"}}`, "health.http.body", "must be a regular expression (RE2)"},
	{`{http: {body: "LONG"}}`, `{"http":{"body":"LONG"}}`, "health.http.body", "must be a regular expression (RE2) of 1 to 1024 bytes"},
	{`{http: {status: [200, 99]}}`, `{"http":{"status":["200","99"]}}`, "health.http.status", "must be a status from 100 to 599"},
	{`{tcp: {send: "LONG"}}`, `{"tcp":{"send":"LONG"}}`, "health.tcp.send", "must be 1 to 1024 bytes of UTF-8"},
	{`{udp: {}}`, `{"udp":{}}`, "health.udp.send", "is missing"},
	{`{https: {ca: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}}`, `{"https":{"ca":"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}}`, "health.https.ca", "must be certificates in PEM and nothing else"},
	{`{https: {ca: "LONG"}}`, `{"https":{"ca":"LONG"}}`, "health.https.ca", "must be certificates in PEM and nothing else, at most 65536 bytes"},
	{`{https: {serverName: "a\tb"}}`, `{"https":{"serverName":"a\tb"}}`, "health.https.serverName", "must be a DNS name or an address"},
	{`{grpc: {service: "a b"}}`, `{"grpc":{"service":"a b"}}`, "health.grpc.service", "must be the name of a gRPC service"},
	{`{dns: {name: "a..b"}}`, `{"dns":{"name":"a..b"}}`, "health.dns.name", "must be a DNS name"},
	{`{dns: {name: "a", type: ANY}}`, `{"dns":{"name":"a","type":"ANY"}}`, "health.dns.type", "must be"},
	{`{external: {program: bin/check}}`, `{"external":{"program":"bin/check"}}`, "health.external.program", "must be an absolute path without . and .."},
	{`{external: {program: /a/../etc/passwd}}`, `{"external":{"program":"/a/../etc/passwd"}}`, "health.external.program", "must be an absolute path without . and .."},
	{`{external: {program: "/a\0b"}}`, `{"external":{"program":"/a\u0000b"}}`, "health.external.program", "must be an absolute path"},
	{`{external: {program: /a, arguments: ["x\0y"]}}`, `{"external":{"program":"/a","arguments":["x\u0000y"]}}`, "health.external.arguments", "NUL"},
	{`{tcp: {}, http: {}}`, `{"tcp":{},"http":{}}`, "health", "must have "},
	{`{checks: [{tcp: {}}, {icmp: {}}], combine: {atLeast: 3}}`, `{"checks":[{"tcp":{}},{"icmp":{}}],"combine":"at-least","atLeast":3}`, "health.combine", "must be 1 to the number of checks, 2"},
	{`{checks: [{tcp: {}}, {icmp: {}}], combine: most}`, `{"checks":[{"tcp":{}},{"icmp":{}}],"combine":"most"}`, "health.combine", "must be all, any or {atLeast: NUMBER}"},
	{`{checks: [NINE]}`, `{"checks":[NINE]}`, "health.checks", "must be at most 8"},
	{`{checks: [{icmp: {}, port: 80}]}`, `{"checks":[{"icmp":{},"port":80}]}`, "health.port", "must be left out with icmp"},
	{`{tcp: {}, through: vpn}`, `{"tcp":{},"through":"vpn"}`, "health.through", "must be"},
	{`{https: {}, engine: packet}`, `{"https":{},"engine":"packet"}`, "health.engine", "must be socket or left out"},
	{`{tcp: {}, panicBelow: 101}`, `{"tcp":{},"panicBelow":101}`, "health.panicBelow", "must be 0 to 100"},
	{`{tcp: {}, minimumHealthy: 2}`, `{"tcp":{},"minimumHealthy":2}`, "health.minimumHealthy", "must be 0 to the number of backends"},
	{`{tcp: {}, damping: {flips: 0, within: 1s, hold: 1s}}`, `{"tcp":{},"damping":{"flips":1001,"within":"1s","hold":"1s"}}`, "health.damping.flips", "must be 1 to 1000"},
	{`{tcp: {}, from: nowhere}`, `{"tcp":{},"from":"nowhere"}`, "health.from", "must be"},
	{`{tcp: {}, colour: red}`, `{"tcp":{},"colour":"red"}`, "health", "colour"},
}

// long replaces LONG by size bytes, and NINE by nine checks, one more than allowed.
func long(s string, size int) string {
	nine := strings.TrimSuffix(strings.Repeat(`{"tcp":{}},`, 9), ",")
	return strings.NewReplacer("LONG", strings.Repeat("x", size), "NINE", nine).Replace(s)
}

// TestHostileHealthInYAML: each is refused with its field and the allowed values, in full.
func TestHostileHealthInYAML(t *testing.T) {
	for _, c := range hostile {
		text := fmt.Sprintf("kind: Service\nname: web\nvip: [203.0.113.10]\nendpoints:\n- protocol: tcp\n  port: 80\n"+
			"  backends: [{dip: [10.20.1.11], host: 10.20.1.1}]\n  health: %s\n", long(c.yaml, 1<<20-1<<10))
		objects, err := lb.Parse(strings.NewReader(text), "hostile")
		refused(t, c.yaml, c.path, c.allowed, err)
		if len(objects) > 0 {
			t.Errorf("%s: objects beside an error", c.yaml)
		}
	}
}

// TestHostileHealthInTheAPI: specifications that are invalid in JSON, or in messages, are refused
// with the same text.
func TestHostileHealthInTheAPI(t *testing.T) {
	for _, c := range hostile {
		if !json.Valid([]byte(long(c.json, 1<<20))) {
			t.Fatalf("%s: is no JSON", c.json)
		}
		text := fmt.Sprintf(`{"service":{"name":"web","vip":["203.0.113.10"],"endpoints":[{"protocol":"tcp","port":"80",`+
			`"backends":[{"dip":["10.20.1.11"],"host":"10.20.1.1"}],"health":%s}]}}`, long(c.json, 1<<20))
		var o apiv1.Object
		if err := protojson.Unmarshal([]byte(text), &o); err != nil {
			if len(err.Error()) > 4096 {
				t.Errorf("%s: %d bytes of error", c.json, len(err.Error()))
			}
			continue // no such message exists
		}
		obj, faults := FromObject(&o, 0)
		if len(faults) == 0 {
			faults = lb.Validate(obj)
		}
		var all []string
		for _, f := range faults {
			all = append(all, f.String())
		}
		if len(all) == 0 {
			t.Errorf("%s: was accepted", c.json)
			continue
		}
		refused(t, c.json, c.path, c.allowed, fmt.Errorf("%s", strings.Join(all, "\n")))
	}
}

// TestHostileHealthInPlans: reading a plan does not panic, whatever health it has.
func TestHostileHealthInPlans(t *testing.T) {
	for _, c := range hostile {
		var h apiv1.Health
		if protojson.Unmarshal([]byte(long(c.json, 1<<20)), &h) != nil {
			continue
		}
		in := &apiv1.PlanEndpoint{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Service: "web", Check: &apiv1.PlanCheck{Health: &h}}
		if e, err := FromPlanEndpoint(in); err == nil && len(e.Health.Checks) == 0 {
			t.Errorf("%s: an endpoint without checks", c.json)
		}
	}
}

// refused checks that an error names the field and the allowed values, in a short text.
func refused(t *testing.T, what, path, allowed string, err error) {
	t.Helper()
	if len(what) > 80 {
		what = what[:80]
	}
	switch {
	case err == nil:
		t.Errorf("%s: was accepted", what)
	case !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), allowed):
		t.Errorf("%s: %.600v: want %s and %q", what, err, path, allowed)
	case len(err.Error()) > 4096:
		t.Errorf("%s: %d bytes of error", what, len(err.Error()))
	}
}

package convert

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// health draws one check half of the time, else several.
func health(rt *rapid.T) lb.Health {
	h := lb.Health{
		From: rapid.SampledFrom([]string{lb.FromMux, lb.FromHost, lb.FromBoth}).Draw(rt, "from"), Checks: []lb.Check{randomCheck(rt)},
	}
	if rapid.Bool().Draw(rt, "several checks") {
		h.Checks = append(h.Checks, some(rt, "more checks", 1, 2, randomCheck)...)
	}
	if rapid.Bool().Draw(rt, "combined") {
		h.Combine, h.AtLeast = rapid.SampledFrom([]string{lb.CombineAny, lb.CombineAtLeast}).Draw(rt, "combine"), rapid.Uint8().Draw(rt, "at least")
		h.PanicBelow, h.MinimumHealthy = rapid.Uint8().Draw(rt, "panic below"), word(rt, "minimum healthy")
		h.Damping = maybe(rt, func(rt *rapid.T) lb.Damping {
			return lb.Damping{Flips: word(rt, "flips"), Within: randomDuration(rt, "within"), Hold: randomDuration(rt, "hold")}
		})
		h.Passive = maybe(rt, func(rt *rapid.T) lb.Passive {
			return lb.Passive{Failures: word(rt, "failures"), Within: randomDuration(rt, "within"), Hold: randomDuration(rt, "hold")}
		})
	}
	h.SetDefaults()
	return h
}

// randomCheck draws a check of any kind, half of the time one that nodes of older versions know.
func randomCheck(rt *rapid.T) lb.Check {
	c := lb.Check{
		Kind: rapid.SampledFrom([]string{lb.CheckTCP, lb.CheckHTTP}).Draw(rt, "check"), Interval: randomDuration(rt, "interval"),
		Timeout: randomDuration(rt, "timeout"), Rise: rapid.Uint32Range(1, 9).Draw(rt, "rise"), Fall: rapid.Uint32Range(1, 9).Draw(rt, "fall"),
		Port: word(rt, "check port"),
	}
	if c.Kind == lb.CheckHTTP {
		c.Path, c.Host = "/"+name(rt), name(rt)
	}
	if rapid.Bool().Draw(rt, "simple") {
		c.SetDefaults()
		return c
	}
	text := func(what string) string { return rapid.StringMatching(`[ -~\r\n\x00ü]{0,8}`).Draw(rt, what) }
	c.Kind = rapid.SampledFrom([]string{lb.CheckTCP, lb.CheckHTTP, lb.CheckICMP, lb.CheckGRPC, lb.CheckUDP, lb.CheckDNS, lb.CheckExternal}).Draw(rt, "kind")
	c.Path, c.Host = "", ""
	switch c.Kind {
	case lb.CheckTCP, lb.CheckUDP:
		c.Send, c.Expect = text("send"), text("expect")
	case lb.CheckHTTP:
		c.Path, c.Host, c.Method, c.Body, c.Version = text("path"), text("host"), text("method"), text("body"), text("version")
		c.Status, _, _ = lb.NewStatusSet(some(rt, "statuses", 0, 3, func(rt *rapid.T) string {
			return lb.StatusText(rapid.IntRange(100, 300).Draw(rt, "low"), rapid.IntRange(300, 599).Draw(rt, "high"))
		}))
		for range rapid.IntRange(0, 2).Draw(rt, "headers") {
			c.Headers.Add("X-"+name(rt), name(rt)+": "+name(rt))
		}
		c.TLS = rapid.Bool().Draw(rt, "tls")
	case lb.CheckGRPC:
		c.Service, c.TLS = text("service"), rapid.Bool().Draw(rt, "tls")
	case lb.CheckDNS:
		c.Name, c.Type, c.Answer = text("name"), text("type"), text("answer")
	case lb.CheckExternal:
		c.Program = text("program")
		c.Arguments, _ = lb.NewArguments(some(rt, "arguments", 0, 3, name))
	}
	if c.TLS {
		c.Verify, c.ServerName, c.CA = rapid.Bool().Draw(rt, "verify"), text("server name"), text("ca")
	}
	c.Fast, c.Jitter, c.Initial = randomDuration(rt, "fast"), rapid.Uint8().Draw(rt, "jitter"), rapid.SampledFrom([]string{lb.InitialDown, lb.InitialUp}).Draw(rt, "initial")
	c.Through = rapid.SampledFrom([]string{lb.ThroughDirect, lb.ThroughTunnel}).Draw(rt, "through")
	c.Engine = rapid.SampledFrom([]string{"", lb.EnginePacket, lb.EngineSocket}).Draw(rt, "engine")
	c.Address = rapid.SampledFrom([]netip.Addr{{}, netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("2001:db8::9")}).Draw(rt, "other address")
	c.SetDefaults()
	return c
}

// TestHealthHasAllOfCheck: Health has every field of Check, with the same name and type, for a
// single check.
func TestHealthHasAllOfCheck(t *testing.T) {
	check, health := (&apiv1.Check{}).ProtoReflect().Descriptor().Fields(), (&apiv1.Health{}).ProtoReflect().Descriptor().Fields()
	for i := range check.Len() {
		a := check.Get(i)
		b := health.ByName(a.Name())
		if b == nil || a.Kind() != b.Kind() || a.Message() != b.Message() || a.Cardinality() != b.Cardinality() {
			t.Errorf("%s: Health has %v", a.Name(), b)
		}
	}
}

// TestPlanChecks: a plan has fields unknown to earlier versions only if it needs them, and plans of
// those versions are read.
func TestPlanChecks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := health(rt)
		msg := toPlanCheck(want)
		r := &reader{}
		if got := r.planCheck(msg); !reflect.DeepEqual(got, want) || r.err() != nil {
			rt.Fatalf("came back as %+v %v, want %+v", got, r.err(), want)
		}
		c := want.Checks[0]
		simple := lb.Check{Kind: c.Kind, Interval: c.Interval, Timeout: c.Timeout, Rise: c.Rise, Fall: c.Fall, Port: c.Port}
		if c.Kind == lb.CheckHTTP {
			simple.Path, simple.Host = c.Path, c.Host
		}
		simple.SetDefaults()
		former := len(want.Checks) == 1 && c == simple && want.Equal(lb.Health{Checks: want.Checks, Combine: lb.CombineAll, From: want.From})
		if former != (msg.Health == nil) {
			rt.Fatalf("%+v: a former version reads it: %v; written as %v", want, former, msg)
		}
	})
	r := &reader{}
	kept := r.planCheck(&apiv1.PlanCheck{Kind: "http", Path: "/x", Interval: durationpb.New(time.Second), Timeout: durationpb.New(time.Second), Rise: 1, Fall: 4})
	want := lb.Health{From: lb.FromMux, Checks: []lb.Check{{Kind: "http", Path: "/x", Interval: time.Second, Timeout: time.Second, Rise: 1, Fall: 4}}}
	want.SetDefaults()
	if !reflect.DeepEqual(kept, want) {
		t.Errorf("kept plan: %+v, want %+v", kept, want)
	}
}

func TestChecksThatAreNone(t *testing.T) {
	tcp := func(more func(*apiv1.Check)) *apiv1.Check {
		c := &apiv1.Check{Tcp: &apiv1.TCPCheck{}}
		more(c)
		return c
	}
	for _, c := range []struct {
		health *apiv1.Health
		want   string
	}{
		{&apiv1.Health{Http: &apiv1.HTTPCheck{}, Tcp: &apiv1.TCPCheck{}}, "health: tcp and http: must have at most one of tcp and http"},
		{&apiv1.Health{Dns: &apiv1.DNSCheck{}, Checks: []*apiv1.Check{tcp(func(*apiv1.Check) {})}}, "health.dns: must be left out beside checks, or be one of them"},
		{&apiv1.Health{Checks: []*apiv1.Check{{Rise: 1}}}, "health.checks[0]: must have a kind: tcp, http, https, icmp, grpc, udp, dns, external"},
		{&apiv1.Health{Checks: []*apiv1.Check{nil}}, "health.checks[0]: must have a kind: tcp, http, https, icmp, grpc, udp, dns, external"},
		{&apiv1.Health{Rise: 2, Fall: 2, Checks: []*apiv1.Check{tcp(func(c *apiv1.Check) { c.Rise = 3 })}}, "health.rise: must be left out: every check says its own"},
		{&apiv1.Health{Http: &apiv1.HTTPCheck{Status: []string{"200", "2xx"}}}, "health.http.status[1]: 2xx: must be a status from 100 to 599, or a range such as 200-299"},
		{&apiv1.Health{Https: &apiv1.HTTPSCheck{Headers: []string{"X:y"}}}, "health.https.headers[0]: X:y: must be NAME: VALUE"},
		{&apiv1.Health{Http: &apiv1.HTTPCheck{Headers: []string{"Host: y"}}}, "health.http.headers[0]: Host: y: must not be Host, Content-Length, Transfer-Encoding or Connection, which the request has by itself"},
		{&apiv1.Health{External: &apiv1.ExternalCheck{Arguments: []string{"a\x00"}}}, `health.external.arguments: argument "a\x00": must hold no NUL`},
		{&apiv1.Health{Jitter: 256}, "health.jitter: 256: must be 1 to 50"},
		{&apiv1.Health{AtLeast: 256}, "health.atLeast: 256: must be 1 to 8"},
		{&apiv1.Health{MinimumHealthy: 65536}, "health.minimumHealthy: 65536: must be 0 to the number of backends"},
		{&apiv1.Health{Damping: &apiv1.Damping{Hold: durationpb.New(-1)}}, "health.damping.hold: -1ns: must be longer than 0s"},
		{&apiv1.Health{Address: "localhost"}, "health.address: localhost: must be an IPv4 or IPv6 address"},
	} {
		r := &reader{}
		r.health("health", c.health)
		if len(r.faults) != 1 || r.faults[0].String() != c.want {
			t.Errorf("%v: %v, want %s", c.health, r.faults, c.want)
		}
	}
	r := &reader{}
	if h := r.health("health", &apiv1.Health{Grpc: &apiv1.GRPCCheck{Tls: &apiv1.CheckTLS{}}}); !h.Checks[0].Verify || len(r.faults) > 0 {
		t.Errorf("certificates are not verified: %+v %v", h, r.faults)
	}
}

// withHealth returns a service with one endpoint with this health.
func withHealth(h *apiv1.Health) *apiv1.Object {
	return &apiv1.Object{Kind: &apiv1.Object_Service{Service: &apiv1.Service{Name: "web", Endpoints: []*apiv1.Endpoint{{
		Protocol: "tcp", Port: "80", Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}, Host: "10.20.1.1"}}, Health: h,
	}}}}}
}

// saidOf returns the content of a source that sets this health, and its paths.
func saidOf(t *testing.T, h *apiv1.Health) (proto.Message, []string) {
	t.Helper()
	said, faults := Said(withHealth(h), 0)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var out []string
	for _, f := range Schema.List(said.Content) {
		if path, ok := strings.CutPrefix(f.Path, "endpoints[tcp/80].health."); ok {
			out = append(out, path+" = "+f.Text())
		}
	}
	return said.Content, out
}

func TestSaidOfChecks(t *testing.T) {
	second := durationpb.New(time.Second)
	for _, c := range []struct {
		said *apiv1.Health
		want []string
	}{
		{&apiv1.Health{Checks: []*apiv1.Check{{Http: &apiv1.HTTPCheck{Path: "/a"}, Interval: second}}, Rise: 3}, []string{"http.path = /a", "interval = 1s", "rise = 3"}},
		{&apiv1.Health{Interval: second, Combine: "any", Checks: []*apiv1.Check{{Tcp: &apiv1.TCPCheck{}}, {Icmp: &apiv1.ICMPCheck{}, Rise: 9}}}, []string{
			"checks = {tcp: {}, interval: 1s, timeout: 500ms, rise: 2, fall: 3, through: tunnel}, {icmp: {}, interval: 1s, timeout: 500ms, rise: 9, fall: 3, through: direct}", "combine = any",
		}},
	} {
		content, got := saidOf(t, c.said)
		if !slices.Equal(got, c.want) {
			t.Errorf("%v says %q, want %q", c.said, got, c.want)
		}
		again, faults := Said(WithContent(content), 0)
		if len(faults) > 0 || !proto.Equal(again.Content, content) {
			t.Errorf("said again: %v %v, first %v", again.Content, faults, content)
		}
	}
}

// TestWrittenChecks: a document with one check in a list is equivalent to one without the list.
func TestWrittenChecks(t *testing.T) {
	written := func(health string) proto.Message {
		t.Helper()
		docs, err := lb.ParseDocuments(strings.NewReader("kind: Service\nname: web\nvip: 203.0.113.10\nendpoints:\n- {protocol: tcp, port: 80, backends: [{dip: 10.20.1.11, host: 10.20.1.1}], health: "+health+"}"), "test", lb.Whole)
		if err != nil {
			t.Fatal(err)
		}
		return Content(Written(docs[0]))
	}
	one := written("{http: {path: /a, status: [200]}, interval: 2s, rise: 3, combine: {atLeast: 1}}")
	if list := written("{checks: [{http: {path: /a, status: [200]}, interval: 2s}], rise: 3, combine: {atLeast: 1}}"); !proto.Equal(one, list) {
		t.Errorf("in a list %v, without %v", list, one)
	}
	h := one.(*apiv1.Service).GetEndpoints()[0].GetHealth()
	want := &apiv1.Health{Http: &apiv1.HTTPCheck{Path: "/a", Status: []string{"200"}}, Interval: durationpb.New(2 * time.Second), Rise: 3, Combine: "at-least", AtLeast: 1}
	if !proto.Equal(h, want) {
		t.Errorf("written %v, want %v", h, want)
	}
	all := written("{checks: [{grpc: {service: a, tls: {serverName: b, verify: false}}}, {external: {program: /x, arguments: [a]}}], panicBelow: 30, minimumHealthy: 1, damping: {flips: 2}}")
	h = all.(*apiv1.Service).GetEndpoints()[0].GetHealth()
	if len(h.GetChecks()) != 2 || h.GetPanicBelow() != 30 || h.GetMinimumHealthy() != 1 || h.GetDamping().GetFlips() != 2 || h.GetDamping().Hold != nil || h.Interval != nil {
		t.Errorf("written %v", h)
	}
}

// TestSourcesOfChecks: several checks are one field. A source that sets other checks conflicts with
// the owners; others may set the fields of health that are not checks.
func TestSourcesOfChecks(t *testing.T) {
	checks := func(paths ...string) *apiv1.Health {
		h := &apiv1.Health{}
		for _, p := range paths {
			h.Checks = append(h.Checks, &apiv1.Check{Http: &apiv1.HTTPCheck{Path: p}})
		}
		return h
	}
	content := func(h *apiv1.Health) proto.Message { m, _ := saidOf(t, h); return m }
	present, owners, _ := Schema.Apply((&apiv1.Service{}), nil, content(checks("/a", "/b")), "apply", false)
	if _, _, conflicts := Schema.Apply(present, owners, content(checks("/a", "/c")), "ops", false); len(conflicts) != 1 || conflicts[0].Wanted.Path != "endpoints[tcp/80].health.checks" ||
		!slices.Equal(conflicts[0].Owners, []string{"apply"}) {
		t.Errorf("conflicts %v", conflicts)
	}
	if _, _, conflicts := Schema.Apply(present, owners, content(checks("/a", "/b")), "ops", false); len(conflicts) > 0 {
		t.Errorf("the same is in conflict: %v", conflicts)
	}
	merged, _, conflicts := Schema.Apply(present, owners, content(&apiv1.Health{PanicBelow: 30}), "ops", false)
	obj, faults := FromObject(WithContent(merged), 0)
	if len(conflicts)+len(faults) > 0 {
		t.Fatal(conflicts, faults)
	}
	if h := obj.(*lb.Service).Endpoints[0].Health; len(h.Checks) != 2 || h.Checks[1].Path != "/b" || h.PanicBelow != 30 {
		t.Errorf("merged %+v", h)
	}
	merged, _, _ = Schema.Apply(present, owners, content(&apiv1.Health{Rise: 9}), "ops", false)
	if _, faults := FromObject(WithContent(merged), 0); len(faults) != 1 || faults[0].String() != "services/web: endpoints[0].health.rise: "+lb.AllowedBeside {
		t.Errorf("a rise that counts for no check: %v", faults)
	}
}

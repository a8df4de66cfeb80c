package lb_test

import (
	_ "embed"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

//go:embed testdata/pem/ca.pem
var caPEM string

// health draws a valid health configuration for an endpoint.
func health(t *rapid.T, e *lb.Endpoint) lb.Health {
	h := lb.Health{
		From:       rapid.SampledFrom([]string{lb.FromMux, lb.FromHost, lb.FromBoth}).Draw(t, "from"),
		Combine:    rapid.SampledFrom([]string{lb.CombineAll, lb.CombineAny, lb.CombineAtLeast}).Draw(t, "combine"),
		PanicBelow: rapid.Uint8Range(0, 100).Draw(t, "panic below"), MinimumHealthy: uint16(rapid.IntRange(0, len(e.Backends)).Draw(t, "minimum healthy")),
	}
	for range rapid.IntRange(1, 3).Draw(t, "checks") {
		h.Checks = append(h.Checks, check(t, e, h.From))
	}
	if h.Combine == lb.CombineAtLeast {
		h.AtLeast = uint8(rapid.IntRange(1, len(h.Checks)).Draw(t, "at least"))
	}
	span := duration(lb.MinSpan, lb.MaxSpan)
	if rapid.Bool().Draw(t, "damped") {
		h.Damping = &lb.Damping{Flips: rapid.Uint16Range(1, lb.MaxFlips).Draw(t, "flips"), Within: span.Draw(t, "within"), Hold: span.Draw(t, "hold")}
	}
	if h.ByHost() && e.Rewrite != lb.RewriteNone && e.Protocol != lb.UDP && rapid.Bool().Draw(t, "passive") {
		h.Passive = &lb.Passive{Failures: rapid.Uint16Range(1, lb.MaxFailures).Draw(t, "failures"), Within: span.Draw(t, "within"), Hold: span.Draw(t, "hold")}
	}
	return h
}

func check(t *rapid.T, e *lb.Endpoint, from string) lb.Check {
	text := rapid.StringN(1, 30, 200)
	c := lb.Check{
		Kind: rapid.SampledFrom([]string{lb.CheckTCP, lb.CheckHTTP, lb.CheckICMP, lb.CheckGRPC, lb.CheckUDP, lb.CheckDNS, lb.CheckExternal}).Draw(t, "check"),
		Rise: rapid.Uint32Range(1, 100).Draw(t, "rise"), Fall: rapid.Uint32Range(1, 100).Draw(t, "fall"), Jitter: rapid.Uint8Range(1, 50).Draw(t, "jitter"),
		Interval: duration(100*time.Millisecond, time.Hour).Draw(t, "interval"), Initial: rapid.SampledFrom([]string{lb.InitialDown, lb.InitialUp}).Draw(t, "initial"),
		Through: lb.ThroughDirect,
	}
	c.Timeout = duration(time.Millisecond, c.Interval).Draw(t, "timeout")
	if rapid.Bool().Draw(t, "fast") {
		c.Fast = duration(100*time.Millisecond, c.Interval).Draw(t, "fast interval")
	}
	some := func(what string, g *rapid.Generator[string]) string {
		if rapid.Bool().Draw(t, "no "+what) {
			return ""
		}
		return g.Draw(t, what)
	}
	switch c.Kind {
	case lb.CheckTCP:
		c.Send, c.Expect = some("send", text), some("expect", text)
	case lb.CheckUDP:
		c.Send, c.Expect = text.Draw(t, "send"), some("expect", text)
	case lb.CheckHTTP:
		c.Path = "/" + rapid.StringMatching(`[!-~]{0,20}`).Draw(t, "path")
		c.Host = rapid.StringMatching(`([A-Za-z0-9_.:\[\]-]{1,20})?`).Draw(t, "host")
		c.Method = rapid.SampledFrom([]string{"GET", "HEAD", "POST", "my-method"}).Draw(t, "method")
		c.Version = rapid.SampledFrom([]string{lb.HTTP1, lb.HTTP2}).Draw(t, "version")
		for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[!#a-z~][0-9a-z]{0,6}`), 0, 3, rapid.ID).Draw(t, "headers") {
			if name != "host" && name != "connection" {
				c.Headers.Add(name, rapid.StringMatching(`([!-~]([ -~]{0,8}[!-~])?)?`).Draw(t, "value"))
			}
		}
		c.Status = lb.DefaultHealthStatus
		if rapid.Bool().Draw(t, "statuses") {
			c.Status = statuses(t)
		}
		if c.Method != "HEAD" {
			c.Body = some("body", rapid.SampledFrom([]string{"^ok$", `\d+ [a-z]{2,3}`, "(?i)yes|\n"}))
		}
		c.TLS = rapid.Bool().Draw(t, "tls")
	case lb.CheckGRPC:
		c.Service, c.TLS = some("service", rapid.StringMatching(`[!-~]{1,20}`)), rapid.Bool().Draw(t, "tls")
	case lb.CheckDNS:
		c.Name = rapid.SampledFrom([]string{".", "example.com", "_sip._udp.example.com.", "1.2.3.4.in-addr.arpa"}).Draw(t, "name")
		c.Type = rapid.SampledFrom(lb.DNSTypes).Draw(t, "type")
		switch c.Type {
		case "A":
			c.Answer = some("answer", rapid.Just("192.0.2.1"))
		case "AAAA":
			c.Answer = some("answer", rapid.Just("2001:db8::1"))
		default:
			c.Answer = some("answer", rapid.StringMatching(`[!-~]([ -~]{0,8}[!-~])?`))
		}
	case lb.CheckExternal:
		c.Program = rapid.StringMatching(`(/[a-z0-9_-][!-.0-9:-~]{0,5}){1,3}`).Draw(t, "program")
		c.Arguments, _ = lb.NewArguments(rapid.SliceOfN(rapid.StringMatching(`[ -~\n]{0,8}`), 0, 3).Draw(t, "arguments"))
	}
	if c.TLS {
		c.ServerName = some("server name", rapid.StringMatching(`[a-z0-9.-]{1,20}`))
		if c.Verify = rapid.Bool().Draw(t, "verify"); c.Verify {
			c.CA = some("ca", rapid.SampledFrom([]string{caPEM, caPEM + "\n" + caPEM}))
		}
	}
	if c.HasPort() {
		c.Port = rapid.Uint16().Draw(t, "check port")
		if e.PortEnd != 0 {
			c.Port = max(1, c.Port)
		}
	}
	if c.Plain() {
		c.Engine = rapid.SampledFrom([]string{"", lb.EnginePacket, lb.EngineSocket}).Draw(t, "engine")
		if from != lb.FromHost && c.Engine != lb.EngineSocket && e.Protocol != lb.UDP && rapid.Bool().Draw(t, "tunnel") {
			c.Through, c.Port = lb.ThroughTunnel, e.Port
			return c
		}
	} else {
		c.Engine = rapid.SampledFrom([]string{"", lb.EngineSocket}).Draw(t, "engine")
	}
	if rapid.Bool().Draw(t, "address") {
		c.Address = rapid.SampledFrom([]netip.Addr{v4(1, 9), v6(1, 9)}).Draw(t, "other address")
	}
	return c
}

// statuses draws some codes, and returns the set of an oracle that marks each.
func statuses(t *rapid.T) lb.StatusSet {
	var marked [600]bool
	var list []string
	for range rapid.IntRange(1, 4).Draw(t, "parts") {
		low := rapid.IntRange(100, 599).Draw(t, "low")
		high := rapid.IntRange(low, 599).Draw(t, "high")
		list = append(list, lb.StatusText(low, high))
		for i := low; i <= high; i++ {
			marked[i] = true
		}
	}
	set, _, allowed := lb.NewStatusSet(list)
	if allowed != "" {
		t.Fatalf("%q: %s", list, allowed)
	}
	for code := range marked {
		if set.Has(code) != marked[code] {
			t.Fatalf("%q became %q, which is wrong about %d", list, set, code)
		}
	}
	if again, _, _ := lb.NewStatusSet(set.List()); again != set {
		t.Fatalf("%q is not canonical: %q", set, again)
	}
	return set
}

// TestChecksOneWayOrTheOther: fields in health apply to every check that does not set them, and a
// single check is equivalent to the fields of health itself.
func TestChecksOneWayOrTheOther(t *testing.T) {
	const head = "kind: Service\nname: web\nvip: 203.0.113.10\nendpoints:\n- protocol: tcp\n  port: 80\n  backends: [{dip: 10.20.1.11, host: 10.20.1.1}]\n  health: "
	parse := func(health string) lb.Object {
		t.Helper()
		o, err := lb.Parse(strings.NewReader(head+health), "test")
		if err != nil {
			t.Fatal(err)
		}
		return o[0]
	}
	for a, b := range map[string]string{
		"{checks: [{tcp: {}}]}":                                                      "{}",
		"{checks: [{http: {}, interval: 3s}], rise: 7}":                              "{http: {}, interval: 3s, rise: 7}",
		"{timeout: 1s, checks: [{tcp: {}, interval: 1s, timeout: 2ms}, {icmp: {}}]}": "{checks: [{tcp: {}, timeout: 2ms}, {icmp: {}, timeout: 1s}]}",
		"{interval: 100ms, checks: [{tcp: {}}, {icmp: {}, interval: 9s}], port: 8080, fast: 100ms, engine: socket}": "{checks: [" +
			"{tcp: {}, interval: 100ms, timeout: 100ms, port: 8080, fast: 100ms, engine: socket}, " +
			"{icmp: {}, interval: 9s, timeout: 500ms, fast: 100ms, engine: socket}]}",
	} {
		if got, want := parse(a), parse(b); !lb.Equal(got, want) {
			t.Errorf("%s became\n%s\n%s\n%s", a, lb.Marshal(got), b, lb.Marshal(want))
		}
	}
}

func TestHeadersThatAreNone(t *testing.T) {
	var h lb.Headers
	if wrong := h.Add("X-A", "b: c"); wrong != "" || !slices.Equal(h.List(), []string{"X-A: b: c"}) {
		t.Errorf("%q, %s", h, wrong)
	}
	for _, c := range [][2]string{{"", ""}, {"a b", ""}, {"a:", ""}, {"ä", ""}, {"HOST", "x"}, {"Content-length", "1"}, {"x", "a\nb"}, {"x", " a"}, {"x", "é"}} {
		if h.Add(c[0], c[1]) == "" {
			t.Errorf("%q: %q was added", c[0], c[1])
		}
	}
}

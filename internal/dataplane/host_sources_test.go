package dataplane

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestHostTunnelSources: tunnel packets are accepted from the sources of every Network and from nowhere else, also
// after sources change and after a restart.
func TestHostTunnelSources(t *testing.T) {
	e := newHostEnv(t).quiet()
	good4 := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40005, dport: 80, ack: true, payload: "x"}
	good6 := packet{protocol: lb.TCP, src: client6, dst: vip6, sport: 40005, dport: 80, ack: true, payload: "x"}
	bindings := []string{dip4, dip6}
	apply := func(sources ...string) {
		t.Helper()
		s := HostState{MTU: 1500}
		for _, p := range sources {
			s.TunnelSources = append(s.TunnelSources, netip.MustParsePrefix(p))
		}
		s.Bindings = append(s.Bindings, bind(lb.TCP, vip4, bindings[0], dip4, true), bind(lb.TCP, vip6, bindings[1], dip6, true))
		must(t, e.host.Apply(s))
	}
	expect := func(from map[string]bool) {
		t.Helper()
		for source, accepted := range from {
			frame := tunnel(t, source, dip4, good4.bytes(t))
			if netip.MustParseAddr(source).Is6() {
				frame = tunnel(t, source, dip6, good6.bytes(t))
			}
			verdict, reason := int32(verdictDrop), "in_bad_source"
			if accepted {
				verdict, reason = verdictRedirect, "in_delivered"
			}
			e.expect(source, frame, verdict, nil, reason)
		}
	}
	from := map[string]bool{"100.64.3.7": true, "fd53:6875:6e74::1": true, "100.80.1.2": false, "100.81.1.2": false, "fd53:6875:6e75::1": false, client4: false}
	apply("100.64.0.0/16", "fd53:6875:6e74::/64")
	expect(from)
	apply("100.64.0.0/16", "fd53:6875:6e74::/64", "100.80.0.0/16", "fd53:6875:6e75::/64", "100.81.1.0/24")
	from["100.80.1.2"], from["100.81.1.2"], from["fd53:6875:6e75::1"] = true, true, true
	expect(from)
	e.host.Close()
	e.open()
	e.quiet()
	expect(from)
	// The own Network's go, another's take their place in the configuration.
	apply("100.80.0.0/16", "fd53:6875:6e75::/64", "100.81.1.0/24")
	from["100.64.3.7"], from["fd53:6875:6e74::1"] = false, false
	expect(from)
	apply("100.80.0.0/16")
	maps.DeleteFunc(from, func(source string, _ bool) bool { return source == "100.80.1.2" })
	for source := range from {
		from[source] = false
	}
	from["100.80.1.2"] = true
	expect(from)
	if n := len(e.host.state.sources); n != 0 || e.host.state.config.Flags != 0 {
		t.Errorf("%d sources beyond the configuration, flags %d", n, e.host.state.config.Flags)
	}
	must(t, e.host.Apply(HostState{TunnelSources: manyTunnelSources(65)}))
	must(t, e.host.Apply(HostState{TunnelSources: manyTunnelSources(130)[65:]}))
	if n := len(e.host.state.sources); n != 64 {
		t.Errorf("%d sources beyond the configuration, want 64", n)
	}
}

// manyTunnelSources are n prefixes of IPv4.
func manyTunnelSources(n int) (out []netip.Prefix) {
	for i := range n {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(64 + i)}), 16))
	}
	return out
}

package dataplane

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// ports makes a binding one of the ports first to last.
func ports(first, last uint16, b plan.Binding) plan.Binding {
	b.Key.Port, b.Key.PortEnd, b.DIPPort = first, last, 0
	return b
}

// every makes a binding one of all protocols.
func every(b plan.Binding) plan.Binding {
	b = ports(0, 65535, b)
	b.Key.Protocol = lb.AnyProtocol
	return b
}

// TestRangePrefixes: the blocks of a range hold its ports, each once, and no two neighbours could be one.
func TestRangePrefixes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.Uint16().Draw(rt, "first")
		last := rapid.Uint16Range(first, 65535).Draw(rt, "last")
		next := uint32(first)
		all := rangePrefixes(hostBindingKey{}, first, last)
		for _, p := range all {
			start, size := uint32(bits.ReverseBytes16(p.Key.PortBe)), uint32(1)<<(prefixBits+16-p.Bits)
			if start != next || start%size != 0 {
				rt.Fatalf("%d-%d: block of %d ports at %d, want it at %d", first, last, size, start, next)
			}
			next += size
		}
		if next != uint32(last)+1 || len(all) > 30 {
			rt.Fatalf("%d-%d: %d blocks up to %d", first, last, len(all), next)
		}
	})
	if n := len(rangePrefixes(hostBindingKey{}, 0, 65535)); n != 1 {
		t.Errorf("all ports are %d blocks", n)
	}
	if n := len(rangePrefixes(hostBindingKey{}, 1, 65534)); n != 30 {
		t.Errorf("ports 1 to 65534 are %d blocks, want 30", n)
	}
}

// TestHostRanges: the port's own binding goes before its range, that before all ports, that before all protocols; ports
// stay, and answers come back.
func TestHostRanges(t *testing.T) {
	e := newHostEnv(t).quiet()
	dips := []string{dip4, "10.20.1.21", "10.20.1.22", "10.20.1.23"}
	for _, d := range dips[1:] {
		e.route(d, "vm0")
	}
	e.apply(
		gue(1, bind(lb.TCP, vip4, host4, dips[0], true)),
		gue(1, ports(50, 99, bind(lb.TCP, vip4, host4, dips[1], true))),
		gue(1, ports(0, 65535, bind(lb.TCP, vip4, host4, dips[2], true))),
		gue(1, every(bind(lb.TCP, vip4, host4, dips[3], true))),
		gue(2, ports(8000, 8100, bind(lb.UDP, vip6, host6, dip6, true))),
	)
	for _, c := range []struct {
		protocol  lb.Protocol
		port, out uint16
		dip       string
	}{
		{lb.TCP, 80, 8080, dips[0]}, {lb.TCP, 79, 79, dips[1]}, {lb.TCP, 81, 81, dips[1]}, {lb.TCP, 50, 50, dips[1]}, {lb.TCP, 99, 99, dips[1]},
		{lb.TCP, 49, 49, dips[2]}, {lb.TCP, 100, 100, dips[2]}, {lb.TCP, 65535, 65535, dips[2]}, {lb.TCP, 0, 0, dips[2]},
		{lb.UDP, 80, 80, dips[3]}, {lb.UDP, 53, 53, dips[3]},
	} {
		in := packet{protocol: c.protocol, src: client4, dst: vip4, sport: 40001, dport: c.port, ack: true, payload: "x"}
		out := in
		out.dst, out.dport = c.dip, c.out
		name := fmt.Sprintf("%s %d", c.protocol, c.port)
		e.expect(name, gueTunnel(t, source4, host4, 1, in.bytes(t)), verdictRedirect, frame(out.bytes(t)), "in_delivered")
		back := packet{protocol: c.protocol, src: c.dip, dst: client4, sport: c.out, dport: 40001, ack: true, payload: "y"}
		want := back
		want.src, want.sport = vip4, c.port
		e.answered(name, frame(back.bytes(t)), verdictNext, frame(want.bytes(t)), "out_returned")
	}
	for port, reason := range map[uint16]string{7999: "in_no_binding", 8000: "in_delivered", 8064: "in_delivered", 8100: "in_delivered", 8101: "in_no_binding"} {
		in := packet{protocol: lb.UDP, src: client6, dst: vip6, sport: 40001, dport: port, payload: "x"}
		verdict := int32(verdictRedirect)
		if reason == "in_no_binding" {
			verdict = verdictDrop
		}
		e.expect(fmt.Sprint("udp6 ", port), gueTunnel(t, source6, host6, 2, in.bytes(t)), verdict, nil, reason)
	}
	c, err := e.host.Counters()
	must(t, err)
	var got []uint64
	for _, b := range c.Bindings {
		got = append(got, b.Packets)
	}
	// By key: tcp 0-65535, tcp 50-99, tcp 80, any, then the range of IPv6.
	if fmt.Sprint(got) != "[4 4 1 2 3]" {
		t.Errorf("packets of bindings %v", got)
	}
}

// TestHostRangesChange: a new agent and a changed plan keep the counters of what stays, and leave nothing behind.
func TestHostRangesChange(t *testing.T) {
	e := newHostEnv(t).quiet()
	send := func(port uint16, reason string) {
		t.Helper()
		in := packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 1, dport: port, payload: "x"}
		verdict := int32(verdictRedirect)
		if reason == "in_no_binding" {
			verdict = verdictDrop
		}
		e.expect(fmt.Sprint("port ", port), tunnel(t, source4, dip4, in.bytes(t)), verdict, nil, reason)
	}
	base := bind(lb.UDP, vip4, dip4, dip4, true)
	e.apply(ports(100, 199, base), ports(300, 301, base))
	send(150, "in_delivered")
	send(300, "in_delivered")
	e.open()
	e.quiet()
	e.apply(ports(100, 149, base), ports(150, 199, base), ports(300, 301, base))
	send(150, "in_delivered")
	send(300, "in_delivered")
	c, err := e.host.Counters()
	must(t, err)
	if len(c.Bindings) != 3 || c.Bindings[0].Packets > 1 || c.Bindings[1].Packets+c.Bindings[0].Packets > 2 || c.Bindings[2].Packets != 2 {
		t.Errorf("bindings %+v", c.Bindings)
	}
	must(t, e.host.Apply(HostState{TunnelSources: tunnelSources, MTU: 1500, Bindings: []plan.Binding{base}}))
	send(150, "in_no_binding")
	if n := len(e.host.state.ranges); n != 0 || e.host.state.config.Flags != 0 {
		t.Errorf("%d parts of ranges left, flags %d", n, e.host.state.config.Flags)
	}
}

func TestHostRefusesRanges(t *testing.T) {
	base := bind(lb.TCP, vip4, dip4, dip4, true)
	for want, all := range map[string][]plan.Binding{
		"binding tcp 203.0.113.10:80-111 at 10.20.1.11: outer destination 10.20.1.11 is another member's already": {ports(80, 111, base), ports(80, 111, base)},
		"binding tcp 203.0.113.10:* at 10.20.1.11: outer destination 10.20.1.11 is another member's already":      {ports(0, 65535, base), ports(0, 65535, base)},
		"binding any 203.0.113.10:* at 10.20.1.11: outer destination 10.20.1.11 is another member's already":      {every(base), every(base)},
		"binding tcp 203.0.113.10:90-80 at 10.20.1.11: ports: 90-80: the last must not be below the first":        {ports(90, 80, base)},
		"binding tcp 203.0.113.10:80-90 at 10.20.1.11: dip port: 8080: must be 0 where packets keep their port":   {func() plan.Binding { b := ports(80, 90, base); b.DIPPort = 8080; return b }()},
		"binding any 203.0.113.10:5-65535 at 10.20.1.11: port: 5: must be 0 with protocol any":                    {func() plan.Binding { b := every(base); b.Key.Port = 5; return b }()},
		"binding tcp 203.0.113.10:80 at 10.20.1.11: encap: \"vxlan\": must be ipip or gue":                        {func() plan.Binding { b := base; b.Encap = "vxlan"; return b }()},
		"binding tcp 203.0.113.10:80 at 10.20.1.11: member: 65535: must be at most 65534 with gue":                {gue(65535, base)},
	} {
		if _, err := wantedTables(HostState{Bindings: all}); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// plain is an IP packet of any protocol.
func plain(t *testing.T, src, dst string, protocol layers.IPProtocol, payload string) []byte {
	return serialize(t, true, ipLayer(src, dst, protocol), gopacket.Payload(payload))
}

// TestHostAny: packets of protocols without ports are found by their addresses; a checksum over the addresses follows,
// others are left alone, and answers come back.
func TestHostAny(t *testing.T) {
	e := newHostEnv(t).quiet()
	second := "203.0.113.77"
	e.apply(every(bind(lb.TCP, vip4, dip4, dip4, true)), every(bind(lb.TCP, vip6, dip6, dip6, true)),
		every(bind(lb.TCP, owned4, host4, host4, false)), every(bind(lb.TCP, second, host4, dip4, true)))
	sum := func(src, dst string, protocol byte, body string, at int) string {
		b := []byte(body)
		b[at], b[at+1] = 0, 0
		c := ^headerSum(append(pseudo(src, dst, protocol, len(b)), b...))
		b[at], b[at+1] = byte(c>>8), byte(c)
		return string(b)
	}
	body := strings.Repeat("0123456789abcdef", 2)
	for _, c := range []struct {
		name     string
		protocol byte
		check    int // where the checksum over the addresses is
	}{{"GRE", 47, 0}, {"SCTP", 132, 0}, {"ESP", 50, 0}, {"UDP-Lite", 136, 6}, {"DCCP", 33, 6}, {"254", 254, 0}} {
		for _, way := range []struct{ client, vip, dip, source string }{{client4, vip4, dip4, source4}, {client6, vip6, dip6, source6}} {
			make := func(src, dst string) []byte {
				text := body
				if c.check != 0 {
					text = sum(src, dst, c.protocol, body, c.check)
				}
				return plain(t, src, dst, layers.IPProtocol(c.protocol), text)
			}
			name := c.name + " " + way.vip
			e.expect(name, tunnel(t, way.source, way.dip, make(way.client, way.vip)), verdictRedirect, frame(make(way.client, way.dip)), "in_delivered")
			e.answered(name, frame(make(way.dip, way.client)), verdictNext, frame(make(way.vip, way.client)), "out_returned")
		}
	}
	for _, kind := range []byte{8, 13} {
		e.expect(fmt.Sprint("ICMP type ", kind), tunnel(t, source4, dip4, icmp(t, client4, vip4, kind, 0, 1, []byte("data"))), verdictDrop, nil, "in_no_binding")
		owned := icmp(t, client4, owned4, kind, 0, 1, []byte("data"))
		e.expect(fmt.Sprint("ICMP type to an owned VIP ", kind), tunnel(t, source4, host4, owned), verdictPass, frame(owned), "in_untouched")
	}
	e.expect("ICMPv6 echo", tunnel(t, source6, dip6, icmp(t, client6, vip6, 128, 0, 1, []byte("data"))), verdictDrop, nil, "in_no_binding")
	gre := plain(t, client4, second, 47, body)
	e.expect("the DIP by another VIP", tunnel(t, source4, host4, gre), verdictDrop, nil, "in_no_port")
	gre = plain(t, client4, owned4, 47, body)
	e.expect("rewrite none", tunnel(t, source4, host4, gre), verdictPass, frame(gre), "in_untouched")
	nested := tunnel(t, source4, dip4, plain(t, client4, owned4, 6, body))[14:]
	nested = plain(t, client4, owned4, 4, string(nested))
	e.expect("a tunnel of the client's", tunnel(t, source4, host4, nested), verdictPass, frame(nested), "in_untouched")
	e.expect("UDP-Lite cut", tunnel(t, source4, dip4, plain(t, client4, vip4, 136, "1234567")), verdictDrop, nil, "in_malformed")
	synAck := packet{protocol: lb.TCP, src: owned4, dst: client4, sport: 12345, dport: 1, syn: true, ack: true, options: mssOption(1, 1460)}
	want := synAck
	want.options = mssOption(1, 1440)
	e.answered("SYN-ACK of an owned VIP", frame(synAck.bytes(t)), verdictNext, frame(want.bytes(t)), "pass_not_ours", "mss_clamped")
}

// pseudo is the header that TCP's kind of checksum begins with.
func pseudo(src, dst string, protocol byte, length int) []byte {
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	return append(append(s.AsSlice(), d.AsSlice()...), 0, protocol, byte(length>>8), byte(length))
}

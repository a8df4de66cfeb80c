package dataplane

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// policyFixture has a clock that stands still, and counts datagrams from 0 whatever CPU handles them.
type policyFixture struct{ *muxFixture }

func newPolicyFixture(t *testing.T, s MuxState) policyFixture {
	f := policyFixture{newMuxFixtureWith(t, MuxOptions{testClock: true})}
	f.model.policy = modelPolicy{
		hz: f.mux.tables.guards.hz, packets: map[netip.Addr]*bucketModel{}, flows: map[netip.Addr]*bucketModel{},
	}
	f.setNow(1 << 32)
	s.RingKeys, s.TunnelSources = testKeys, sources
	f.apply(s)
	f.setHops(hopsTo(s))
	return f
}

// setNow sets the clock, in jiffies.
func (f policyFixture) setNow(jiffies uint64) {
	f.t.Helper()
	if err := f.mux.objects.TestJiffies.Set(jiffies); err != nil {
		f.t.Fatal(err)
	}
	f.model.policy.now = jiffies
}

// check is muxFixture.check with the datagrams of all CPUs counted as one.
func (f policyFixture) check(frame []byte) modelResult {
	f.t.Helper()
	for i := 0; i < len(f.mux.memory.datagrams); i += int(muxLimitLIMIT_DATAGRAM_REGION) {
		f.mux.memory.datagrams[i] = f.model.policy.datagrams
	}
	return f.muxFixture.check(frame)
}

// expect checks a frame that must end like this.
func (f policyFixture) expect(p wire.Packet, reason string) modelResult {
	f.t.Helper()
	got := f.check(p.Frame())
	if got.reason != reason {
		f.t.Fatalf("%v: the model says %s, expected %s", p, got.reason, reason)
	}
	f.trace(p, got)
	return got
}

// trace compares what Trace says of a packet, of the tables and of the fake, with what happened to it.
func (f policyFixture) trace(p wire.Packet, want modelResult) {
	f.t.Helper()
	q := Packet{Client: p.Src, VIP: p.Dst}
	switch l4 := p.Payload.(type) {
	case wire.TCP:
		q.Protocol, q.ClientPort, q.Port = lb.TCP, l4.SrcPort, l4.DstPort
	case wire.UDP:
		q.Protocol, q.ClientPort, q.Port = lb.UDP, l4.SrcPort, l4.DstPort
	default:
		return
	}
	if want.reason == "rate_limited" || want.reason == "new_flow_limited" {
		return // a matter of the moment
	}
	fake := &FakeMux{}
	must(f.t, fake.Apply(f.model.state))
	must(f.t, fake.SetNextHops(f.model.hops))
	for _, tables := range []MuxTables{f.mux, fake} {
		got, err := tables.Trace(q)
		if err != nil || got.Verdict != want.reason {
			f.t.Fatalf("trace %+v by %T: %+v, %v; the packet was %s", q, tables, got, err, want.reason)
		}
		if want.member == nil {
			continue
		}
		e, _ := f.model.endpointOf(q.VIP, byte(q.Protocol), q.Port)
		if got.Endpoint != want.member.Endpoint || got.Member != want.member.Member && !e.OnePacket {
			f.t.Fatalf("trace %+v by %T: %+v; the packet went to %+v", q, tables, got, *want.member)
		}
	}
}

// ranged is an endpoint for a range of ports.
func ranged(vip netip.Addr, protocol lb.Protocol, low, high uint16, outers ...string) MuxEndpoint {
	e := endpointOf(vip, protocol, low, outers...)
	e.Key.PortEnd = high
	return e
}

var threeServers = []string{"10.20.1.11", "10.20.2.11", "10.20.3.11"}

func rangesState() MuxState {
	return MuxState{Endpoints: []MuxEndpoint{
		endpointOf(muxVIP4, lb.TCP, 80, threeServers...),
		ranged(muxVIP4, lb.TCP, 70, 90, "10.20.4.11", "10.20.5.11"),
		ranged(muxVIP4, lb.TCP, 91, 100, "10.20.6.11"),
		ranged(muxVIP4, lb.TCP, 0, 65535, "10.20.7.11"),
		ranged(muxVIP4, lb.AnyProtocol, 0, 65535, "10.20.8.11", "10.20.9.11"),
		ranged(muxVIP6, lb.UDP, 1000, 2000, "2001:db8:20:1::11", "2001:db8:20:2::11"),
	}}
}

func TestRanges(t *testing.T) {
	f := newPolicyFixture(t, rangesState())
	member := func(p wire.Packet, endpoint int) {
		t.Helper()
		if got := f.expect(p, "forwarded"); got.member.Endpoint != f.model.state.Endpoints[endpoint].Key {
			t.Errorf("%v goes to %v, expected %v", p.Payload, got.member.Endpoint, f.model.state.Endpoints[endpoint].Key)
		}
	}
	for port, endpoint := range map[uint16]int{80: 0, 70: 1, 79: 1, 81: 1, 90: 1, 91: 2, 100: 2, 69: 3, 101: 3, 1: 3, 65535: 3, 0: 3} {
		member(tcp4(port), endpoint)
	}
	gre := tcp4(80)
	gre.Payload = wire.Raw{Number: 47, Data: make([]byte, 20)}
	member(gre, 4)
	gre.Src = gre.Src.Next()
	member(gre, 4)
	member(udp4(80), 4)
	member(udp4(0), 4)
	member(udp6(1000), 5)
	member(udp6(2000), 5)
	f.expect(udp6(999), "no_endpoint")
	f.expect(udp6(2001), "no_endpoint")
	f.expect(tcp6(1500), "no_endpoint")
	gre6 := tcp6(80)
	gre6.Payload = wire.Raw{Number: 47, Data: make([]byte, 20)}
	f.expect(gre6, "protocol")
	ping := tcp4(0)
	ping.Payload = wire.Echo{ID: 1, Data: []byte("x")}
	f.expect(ping, "echo_replied")
}

// listOf is a source list; equal texts are equal lists.
func listOf(digest byte, allow, deny []string) *SourceList {
	l := &SourceList{Digest: [32]byte{digest}}
	for _, p := range allow {
		l.Allow = append(l.Allow, netip.MustParsePrefix(p))
	}
	for _, p := range deny {
		l.Deny = append(l.Deny, netip.MustParsePrefix(p))
	}
	return l
}

func TestSources(t *testing.T) {
	s := MuxState{
		Endpoints: []MuxEndpoint{
			endpointOf(muxVIP4, lb.TCP, 80, threeServers...), endpointOf(muxVIP6, lb.TCP, 80, threeServers...),
			endpointOf(muxVIP4, lb.UDP, 53, threeServers...), endpointOf(netip.MustParseAddr("203.0.113.11"), lb.TCP, 80, threeServers...),
		},
		VIPs: []MuxVIP{
			{VIP: muxVIP4, Sources: listOf(1, []string{"198.51.100.0/24"}, []string{"198.51.100.128/25"})},
			{VIP: muxVIP6, Sources: listOf(2, nil, []string{"2001:db8:100::/64"})},
			{VIP: netip.MustParseAddr("192.0.2.1"), Sources: listOf(3, nil, []string{"0.0.0.0/0"})},
		},
	}
	f := newPolicyFixture(t, s)
	from := func(p wire.Packet, src string) wire.Packet {
		p.Src = netip.MustParseAddr(src)
		return p
	}
	f.expect(from(tcp4(80), "198.51.100.11"), "forwarded")
	f.expect(from(tcp4(80), "198.51.100.127"), "forwarded")
	f.expect(from(tcp4(80), "198.51.100.128"), "source_denied")
	f.expect(from(udp4(53), "198.51.100.255"), "source_denied")
	f.expect(from(tcp4(80), "198.51.101.0"), "source_denied")
	f.expect(from(tcp6(80), "2001:db8:100::1"), "source_denied")
	f.expect(from(tcp6(80), "2001:db8:100:1::1"), "forwarded")
	ping := tcp4(0)
	ping.Payload = wire.Echo{ID: 1, Data: []byte("who")}
	f.expect(from(ping, "198.51.100.127"), "echo_replied")
	f.expect(from(ping, "198.51.100.128"), "source_denied")
	elsewhere := from(tcp4(80), "198.51.100.200")
	elsewhere.Dst = netip.MustParseAddr("203.0.113.11")
	f.expect(elsewhere, "forwarded")
	s.VIPs[0].Sources = nil
	f.apply(f.with(s))
	f.expect(from(tcp4(80), "198.51.100.128"), "forwarded")
}

// with is a state with the keys and tunnel sources of the tests.
func (f policyFixture) with(s MuxState) MuxState {
	s.RingKeys, s.TunnelSources = testKeys, sources
	return s
}

func TestPacketLimit(t *testing.T) {
	s := MuxState{
		Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 80, threeServers...), endpointOf(muxVIP4, lb.UDP, 53, threeServers...)},
		VIPs:      []MuxVIP{{VIP: muxVIP4, Limits: lb.Limits{Packets: 250}}},
	}
	f := newPolicyFixture(t, s)
	for range 25 { // a tenth of a second
		f.expect(tcp4(80), "forwarded")
	}
	f.expect(tcp4(80), "rate_limited")
	f.expect(udp4(53), "rate_limited")
	f.setNow(f.model.policy.now + f.mux.tables.guards.hz/50) // time for five
	for range 5 {
		f.expect(udp4(53), "forwarded")
	}
	f.expect(tcp4(80), "rate_limited")
	f.setNow(f.model.policy.now + f.mux.tables.guards.hz)
	for range 25 {
		f.expect(udp4(53), "forwarded")
	}
	f.expect(tcp4(80), "rate_limited")
	// What members that left had counted is no refusal.
	s.Endpoints[0] = endpointOf(muxVIP4, lb.TCP, 80, threeServers[:1]...)
	f.apply(f.with(s))
	c, err := f.mux.Counters()
	must(t, err)
	for key, want := range map[lb.EndpointKey]uint64{s.Endpoints[0].Key: 3, s.Endpoints[1].Key: 1} {
		if got := c.Refused[key].Packets; got != want {
			t.Errorf("%v: %d packets refused, want %d of %d", key, got, want, c.Endpoints[key].Packets)
		}
	}
	s.VIPs = nil
	f.apply(f.with(s))
	f.expect(tcp4(80), "forwarded")
}

func TestNewFlowLimit(t *testing.T) {
	f := newPolicyFixture(t, MuxState{
		Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 80, threeServers...), endpointOf(muxVIP4, lb.UDP, 53, threeServers...)},
		VIPs:      []MuxVIP{{VIP: muxVIP4, Limits: lb.Limits{Connections: 10}}},
	})
	later := tcp4(80)
	later.Payload = wire.TCP{SrcPort: 40001, DstPort: 80, Flags: wire.ACK}
	for range 16 { // the least burst
		f.expect(tcp4(80), "forwarded")
	}
	f.expect(tcp4(80), "new_flow_limited")
	f.expect(later, "forwarded")
	f.expect(udp4(53), "forwarded")
	f.setNow(f.model.policy.now + f.mux.tables.guards.hz/10)
	f.expect(tcp4(80), "forwarded")
	f.expect(tcp4(80), "new_flow_limited")
}

// TestSourceHash: all flows of one client, or of one prefix of clients, go to one member.
func TestSourceHash(t *testing.T) {
	e4, e6 := ranged(muxVIP4, lb.TCP, 1, 1000, threeServers...), endpointOf(muxVIP6, lb.UDP, 53, threeServers...)
	e4.SourcePrefix4, e6.SourcePrefix6 = 24, 64
	f := newPolicyFixture(t, MuxState{Endpoints: []MuxEndpoint{e4, e6}})
	chosen := map[uint16]bool{}
	for client := range byte(30) {
		members := map[uint16]bool{}
		for flow := range byte(10) {
			p := tcp4(uint16(1 + 7*int(flow)))
			p.Src = netip.AddrFrom4([4]byte{198, 51, client, flow})
			p.Payload = wire.TCP{SrcPort: uint16(flow) * 1000, DstPort: uint16(1 + 7*int(flow))}
			members[f.expect(p, "forwarded").member.Member] = true
			p6 := udp6(53)
			b := muxClient6.As16()
			b[6], b[15] = client, flow
			p6.Src = netip.AddrFrom16(b)
			members[100+f.expect(p6, "forwarded").member.Member] = true
		}
		if len(members) != 2 {
			t.Fatalf("client %d went to %v", client, members)
		}
		for m := range members {
			chosen[m] = true
		}
	}
	if len(chosen) != 6 {
		t.Errorf("all clients together went to %v", chosen)
	}
}

// TestOnePacket: every datagram is a choice of its own, whatever it says.
func TestOnePacket(t *testing.T) {
	e := endpointOf(muxVIP4, lb.UDP, 53, threeServers...)
	e.OnePacket, e.Affinity = true, AffinityFlow
	f := newPolicyFixture(t, MuxState{Endpoints: []MuxEndpoint{e}})
	f.model.policy.datagrams = 0xfff0
	chosen := map[uint16]int{}
	for range 300 {
		chosen[f.expect(udp4(53), "forwarded").member.Member]++
	}
	for m := range uint16(3) {
		if n := chosen[m]; n < 60 || n > 140 {
			t.Errorf("member %d got %d of 300 equal datagrams", m, n)
		}
	}
}

package dataplane

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// natIdle is how long sessions of tests may be idle.
var natIdle = lb.Idle{Untrusted: 30 * time.Second, Trusted: 300 * time.Second}

// natServers are endpoints of both families and protocols with three servers each.
func natServers() (out []MuxEndpoint) {
	for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
		four := natEndpoint(muxVIP4, protocol, 80, "10.20.1.11", "10.20.2.11", "10.20.3.11")
		six := natEndpoint(muxVIP6, protocol, 80, "2001:db8:20:1::11", "2001:db8:20:2::11", "2001:db8:20:3::11")
		four.Idle, six.Idle = natIdle, natIdle
		out = append(out, four, six)
	}
	return out
}

// natPacket is a client's packet to one of them.
func natPacket(v6, udp bool, from uint16, flags uint8, options ...byte) wire.Packet {
	p := tcp4(80)
	if v6 {
		p = tcp6(80)
	}
	if udp {
		p.Payload = wire.UDP{SrcPort: from, DstPort: 80, Data: fmt.Appendf(nil, "query %d", from)}
	} else {
		l4 := wire.TCP{SrcPort: from, DstPort: 80, Seq: uint32(from), Flags: flags, Options: options, Data: []byte("data behind")}
		if flags&wire.SYN == 0 {
			// Behind what a SYN had, and it acknowledges the server's.
			l4.Seq, l4.Ack = l4.Seq+1+uint32(len(l4.Data)), natISN+1
		}
		p.Payload = l4
	}
	return p
}

// eachKind runs a test for both families and protocols.
func eachKind(t *testing.T, test func(t *testing.T, v6, udp bool)) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			t.Run(fmt.Sprintf("v6 %v, udp %v", v6, udp), func(t *testing.T) { test(t, v6, udp) })
		}
	}
}

// TestNATBothWays: packets of many flows there and back, byte by byte, padded and not, with what is special about IPv6.
func TestNATBothWays(t *testing.T) {
	eachKind(t, func(t *testing.T, v6, udp bool) {
		f := newNATFixture(t, natServers()...)
		for from := uint16(1000); from < 1060; from++ {
			opening := natPacket(v6, udp, from, wire.SYN)
			later := natPacket(v6, udp, from, wire.ACK)
			later.Padding, later.TTL, later.TOS = int(from%7), 2+uint8(from%200), uint8(from)
			if v6 && from%3 == 0 {
				later.Extensions = []wire.Extension{wire.Options(0, 1), wire.Options(60, 2)}
			}
			there := f.in(opening)
			back := f.out(serverSays(*there.packet))
			if src, dst, _, _ := endsOf(*back.packet); src.Addr() != opening.Dst || dst.Addr() != opening.Src || dst.Port() != from {
				t.Fatalf("answered from %v to %v", src, dst)
			}
			again := f.in(later)
			f.out(serverSays(*again.packet))
		}
		if len(f.sessions) != 60 {
			t.Fatalf("%d sessions", len(f.sessions))
		}
		f.sweep()
	})
}

// TestNATZeroChecksum: a datagram without a checksum (RFC 768) stays one.
func TestNATZeroChecksum(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	p := natPacket(false, true, 1000, 0)
	there := f.toServer(p)
	zero := func(p wire.Packet) wire.Packet {
		b := p.Payload.Bytes(p.Src, p.Dst)
		b[6], b[7] = 0, 0
		p.Payload = wire.Raw{Number: wire.ProtoUDP, Data: b}
		return p
	}
	bare := zero(*there.packet)
	there.packet = &bare
	f.checkNAT(zero(p).Frame(), there)
}

// TestNATWrongChecksum: what was wrong stays wrong.
func TestNATWrongChecksum(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	for _, udp := range []bool{false, true} {
		p := natPacket(false, udp, 1000, wire.SYN)
		frame := p.Frame()
		frame[len(frame)-1] ^= 1
		_, out := f.run(frame)
		want := f.toServer(p)
		sent := want.packet.Frame()
		sent[len(sent)-1] ^= 1
		if string(out) != string(sent) {
			t.Errorf("got  %x\nwant %x", out, sent)
		}
	}
}

// TestNATRange: the servers of an endpoint of many ports have the port that the client chose.
func TestNATRange(t *testing.T) {
	e := natEndpoint(muxVIP4, lb.TCP, 70, "10.20.1.11", "10.20.2.11")
	e.Key.PortEnd, e.Idle = 90, natIdle
	for i := range e.Members {
		e.Members[i].Port = 0
	}
	f := newNATFixture(t, e)
	there := f.in(natPacket(false, false, 1000, wire.SYN))
	if _, dst, _, _ := endsOf(*there.packet); dst.Port() != 80 {
		t.Errorf("sent to %v", dst)
	}
	f.out(serverSays(*there.packet))
}

// TestNATRefused: what is not forwarded, and why.
func TestNATRefused(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	there := f.in(natPacket(false, false, 1000, wire.SYN))
	dying := natPacket(false, false, 1000, wire.ACK)
	dying.TTL = 1
	f.in(dying)
	old := serverSays(*there.packet)
	old.TTL = 1
	f.out(old)
	f.in(natPacket(false, false, 1001, wire.RST))
	f.in(natPacket(false, false, 1001, wire.RST|wire.ACK))

	first := piece4(1, 0, true, 80)
	f.checkNAT(longer(first.Frame(), 14+24), natWant{reason: "nat_fragment"})
	piece := first
	piece.Src, piece.Dst = there.packet.Dst, natLIP4
	f.checkNAT(longer(piece.Frame(), 14+24), natWant{reason: "nat_fragment"})
	other := piece
	other.Dst = netip.MustParseAddr("10.10.0.212")
	f.checkNAT(longer(other.Frame(), 14+24), natWant{reason: "pass_not_ours", pass: true})

	stranger := serverSays(*there.packet)
	stranger.Src = netip.MustParseAddr("10.20.1.99")
	f.out(stranger)
	wrong := serverSays(*there.packet)
	l4 := wrong.Payload.(wire.TCP)
	l4.SrcPort++
	wrong.Payload = l4
	f.out(wrong)
	ping := wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Src: muxClient4, Dst: natLIP4, Payload: wire.Echo{ID: 1, Seq: 2}}
	f.checkNAT(ping.Frame(), natWant{reason: "nat_unknown"})

	f.from(NATAddress{natLIP6, 1024, 65535})
	f.in(natPacket(false, false, 1000, wire.ACK))
	f.sweep()
}

// TestNATNoAddress: a mux that has addresses of the other family alone drops what would need one, and forwards the rest.
func TestNATNoAddress(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	f.from(NATAddress{natLIP4, 2000, 3000})
	f.checkNAT(natPacket(true, false, 1000, wire.SYN).Frame(), natWant{reason: "nat_no_address"})
	f.in(natPacket(false, false, 1000, wire.SYN))
	f.sweep()
}

// TestNATNoRoom: sessions are bounded by their number and by the ports towards one server.
func TestNATNoRoom(t *testing.T) {
	one := natEndpoint(muxVIP4, lb.TCP, 80, "10.20.1.11")
	one.Idle = natIdle
	f := newNATFixture(t, one)
	f.from(NATAddress{natLIP4, 2000, 2003}, NATAddress{numbered(9), 3000, 3000})
	fill := func(n uint16) (full int) {
		for from := range n {
			c := f.talk(false, 1000+from)
			if c.says(false, wire.SYN, 0, 0, 0).reason == "nat_full" {
				full++
				continue
			}
			c.says(true, wire.SYN|wire.ACK, 0, 1, 0)
			c.says(false, wire.ACK, 1, 1, 0)
		}
		return full
	}
	if full := fill(20); len(f.sessions) != 5 || full != 15 {
		t.Errorf("%d sessions, %d refused", len(f.sessions), full)
	}
	f.sweep()
	f.from(natPorts...)
	if full := fill(uint16(testLimits.NAT) + 20); full != 20 {
		t.Errorf("%d refused", full)
	}
	if len(f.sessions) != int(testLimits.NAT) {
		t.Errorf("%d sessions", len(f.sessions))
	}
	f.sweep()
	if used, room := f.mux.NATUse(); used != uint64(testLimits.NAT) || room != used {
		t.Errorf("%d used of %d", used, room)
	}
}

// TestNATShares: a VIP that holds more than its share of the sessions gets no new ones, and keeps those it has; another VIP gets some.
func TestNATShares(t *testing.T) {
	four, six := natEndpoint(muxVIP4, lb.TCP, 80, "10.20.1.11"), natEndpoint(muxVIP6, lb.TCP, 80, "2001:db8:20:1::11")
	four.Idle, six.Idle = natIdle, natIdle
	f := newNATFixture(t, four, six)
	shake := func(v6 bool, from uint16) string {
		c := f.talk(v6, from)
		if r := c.says(false, wire.SYN, 0, 0, 0); r.reason == "nat_full" {
			return r.reason
		}
		c.says(true, wire.SYN|wire.ACK, 0, 1, 0)
		c.says(false, wire.ACK, 1, 1, 0)
		return c.class()
	}
	most := uint16(testLimits.NAT) * 3 / 4
	for from := range most {
		shake(false, 1000+from)
	}
	over := func() []Share {
		totals := f.sweep()
		f.over = map[netip.Addr]bool{}
		for _, s := range totals.Over {
			f.over[s.VIP.VIP] = true
		}
		return totals.Over
	}
	if got := over(); got != nil {
		t.Fatalf("three quarters of the room: %v are over their share", got)
	}
	shake(false, 1000+most)
	want := Share{lb.EndpointKey{VIP: muxVIP4}, "nat_sessions", uint64(most) + 1, uint64(most)}
	if got := over(); len(got) != 1 || got[0] != want {
		t.Fatalf("over their share: %v, expected %v", got, want)
	}
	// Its sessions do not count in the flow table, which has clients that it remembers.
	block := f.mux.tables.entries[lb.EndpointKey{VIP: muxVIP4, Protocol: lb.TCP, Port: 80}].block
	for i := range block.words {
		at := block.first + i
		if marked := f.mux.memory.shareMarks[at/64]>>(at%64)&1 == 1; marked != (i == shareSessions) {
			t.Errorf("member word %d of the VIP over its share of sessions has a mark: %v", i, marked)
		}
	}
	if got := shake(false, 2000); got != "nat_full" {
		t.Errorf("a newcomer of the VIP over its share is %q, expected nat_full", got)
	}
	for from := range uint16(20) {
		if got := shake(true, 3000+from); got != "trusted" {
			t.Errorf("a newcomer of the other VIP is %q, expected trusted", got)
		}
	}
	if got := f.talk(false, 1000); got.class() != "trusted" {
		t.Errorf("a session of the VIP over its share is %q", got.class())
	}
}

// TestNATMemberLeaves: a flow of a member that is gone or dead is given another one, from another port; one that drains keeps its connections.
func TestNATMemberLeaves(t *testing.T) {
	eachKind(t, func(t *testing.T, v6, udp bool) {
		servers := natServers()
		f := newNATFixture(t, servers...)
		there := f.in(natPacket(v6, udp, 1000, wire.SYN))
		f.out(serverSays(*there.packet))
		_, vip, protocol, _ := endsOf(natPacket(v6, udp, 1000, 0))
		key := natFlow{netip.AddrPortFrom(natPacket(v6, udp, 1000, 0).Src, 1000), vip, protocol}
		id := f.sessions[key].member
		for i := range servers {
			for j := range servers[i].Members {
				servers[i].Members[j].Choosable = servers[i].Members[j].ID != id
			}
		}
		f.serve(servers...)
		f.in(natPacket(v6, udp, 1000, wire.ACK))
		if f.sessions[key].member != id {
			t.Fatal("a member that drains lost a flow")
		}
		if !udp {
			f.in(natPacket(v6, udp, 1000, wire.SYN))
			if f.sessions[key].member != id {
				t.Fatal("a SYN ended a connection of a member that drains")
			}
			f.in(natPacket(v6, udp, 1000, wire.RST))
			f.in(natPacket(v6, udp, 1000, wire.SYN))
			if f.sessions[key].member == id {
				t.Fatal("a member that drains got a connection")
			}
			id = f.sessions[key].member
		}
		f.setAlive(MemberAlive{f.endpointFor(vip, protocol).Key, id, false})
		f.in(natPacket(v6, udp, 1000, wire.ACK))
		if f.sessions[key].member == id {
			t.Fatal("a dead member kept a flow")
		}
		f.out(serverSays(*there.packet)) // nobody's any more
		f.sweep()
	})
}

// TestNATIdle: sessions end when they are idle, those that are over or were never answered sooner.
func TestNATIdle(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	states := map[string]func(wire.Packet){
		"opened":   func(wire.Packet) {},
		"answered": func(back wire.Packet) { f.out(back) },
		"trusted":  func(back wire.Packet) { f.out(back); f.in(natPacket(false, false, 1002, wire.ACK)) },
		"half closed": func(back wire.Packet) {
			f.out(back)
			f.in(natPacket(false, false, 1003, wire.FIN|wire.ACK))
		},
		"closed": func(back wire.Packet) {
			f.out(back)
			f.in(natPacket(false, false, 1004, wire.FIN|wire.ACK))
			l4 := back.Payload.(wire.TCP)
			l4.Flags, l4.Seq, l4.Ack = wire.FIN|wire.ACK, l4.Seq+1+uint32(len(l4.Data)), l4.Ack+uint32(len(l4.Data))+1
			back.Payload = l4
			f.out(back)
			last := natPacket(false, false, 1004, wire.ACK)
			_, _, ack := numbersOf(back)
			end := last.Payload.(wire.TCP)
			end.Ack = ack
			last.Payload = end
			f.in(last)
		},
		"reset": func(back wire.Packet) { f.out(back); f.in(natPacket(false, false, 1005, wire.RST)) },
	}
	for i, name := range []string{"opened", "answered", "trusted", "half closed", "closed", "reset"} {
		there := f.in(natPacket(false, false, uint16(1000+i), wire.SYN))
		states[name](serverSays(*there.packet))
	}
	f.sweep()
	short, long := uint64(f.mux.tables.ticks(natIdle.Untrusted)), uint64(f.mux.tables.ticks(natIdle.Trusted))
	start, rest := f.tick, uint64(f.mux.tables.ticks(natRest))
	for _, c := range []struct {
		after uint64
		left  int
	}{{short, 6}, {short + 1, 4}, {rest, 4}, {rest + 1, 2}, {long, 2}, {long + 1, 0}} {
		f.at(start + c.after)
		f.sweep()
		if len(f.sessions) != c.left {
			t.Errorf("after %d ticks %d sessions are left, want %d", c.after, len(f.sessions), c.left)
		}
	}
	if n := f.reasonsNow()["nat_expired"]; n != 6 {
		t.Errorf("nat_expired: %d", n)
	}
	f.in(natPacket(false, false, 1000, wire.SYN))
	f.serve(natServers()[1:]...)
	f.sweep()
}

// TestNATWithoutRoom: with no sessions path nat is refused, by endpoint and by address.
func TestNATWithoutRoom(t *testing.T) {
	limits := testLimits
	limits.NAT = 0
	m, err := OpenMux(MuxOptions{Address: muxSelf, Limits: limits})
	must(t, err)
	defer m.Close()
	if err := m.Apply(MuxState{RingKeys: testKeys, Endpoints: natServers()}); err == nil {
		t.Error("endpoints were accepted")
	}
	if err := m.SetNATAddresses(natPorts); err == nil {
		t.Error("addresses were accepted")
	}
	must(t, m.SetNATAddresses(nil))
}

// TestNATTrace: a trace says what becomes of a packet, before there is a session and when there is one.
func TestNATTrace(t *testing.T) {
	eachKind(t, func(t *testing.T, v6, udp bool) {
		servers := natServers()
		if !udp {
			servers = append(splitServers(CookieSplitR), servers[2:]...)
		}
		f := newNATFixture(t, servers...)
		ask := func(p wire.Packet, s Segment) Trace {
			src, dst, protocol, _ := endsOf(p)
			_, echo := stampOf(p, 1)
			got, err := f.mux.Trace(Packet{
				Client: src.Addr(), VIP: dst.Addr(), ClientPort: src.Port(), Port: dst.Port(), Protocol: lb.Protocol(protocol), Segment: s, Echo: echo,
			})
			must(t, err)
			return got
		}
		for from := uint16(1000); from < 1030; from++ {
			opening := natPacket(v6, udp, from, wire.SYN)
			before := ask(opening, SegmentOpening)
			there := f.in(opening)
			if before.Verdict != "forwarded" || before.Outer != there.packet.Dst || before.Source.IsValid() {
				t.Fatalf("before: %+v: it went to %v", before, there.packet.Dst)
			}
			f.out(serverSays(*there.packet))
			later := natPacket(v6, udp, from, wire.ACK)
			after := ask(later, SegmentLater)
			if after.Verdict != "forwarded" || after.Outer != there.packet.Dst || after.Source != there.packet.Src || after.Member != before.Member {
				t.Fatalf("after: %+v: it went from %v to %v", after, there.packet.Src, there.packet.Dst)
			}
		}
		if !udp {
			src, dst, _, _ := endsOf(natPacket(v6, udp, 2000, 0))
			flow := natFlow{src, dst, 6}
			w := cookie.SplitBits.Place(7, uint32(cookie.EncodeShort(f.prf(f.endpointFor(dst, 6), 0, flow), 0, 2, f.endpointFor(dst, 6).Cookie.secret(0))))
			p := natPacket(v6, udp, 2000, wire.ACK, usualOptions(w)...)
			if got := ask(p, SegmentLater); got.Member != 2 {
				t.Errorf("a cookie of member 2: %+v", got)
			}
			if f.in(p); f.sessions[flow].member != 2 {
				t.Errorf("it went to member %d", f.sessions[flow].member)
			}
		}
		f.from()
		if got := ask(natPacket(v6, udp, 1000, wire.SYN), SegmentOpening); got.Verdict != "nat_no_address" || got.Outer.IsValid() {
			t.Errorf("without addresses: %+v", got)
		}
	})
}

// TestNATFlows: the sessions of an endpoint are its flows.
func TestNATFlows(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	for from := range uint16(30) {
		there := f.in(natPacket(from%2 == 0, from%3 == 0, 1000+from, wire.SYN))
		f.out(serverSays(*there.packet))
		f.in(natPacket(from%2 == 0, from%3 == 0, 1000+from, wire.ACK))
	}
	f.at(f.tick + 5)
	for _, e := range f.model.state.Endpoints {
		want := map[uint16]int{}
		for flow, s := range f.sessions {
			if flow.vip.Addr() == e.Key.VIP && flow.protocol == uint8(e.Key.Protocol) {
				want[s.member]++
			}
		}
		got, err := f.mux.listFlows(e.Key, 100)
		must(t, err)
		for _, flow := range got {
			want[flow.Member]--
			if flow.Class != FlowTrusted || flow.Age != 5*f.mux.tables.tick {
				t.Errorf("%v: %+v", e.Key, flow)
			}
		}
		for id, n := range want {
			if n != 0 {
				t.Errorf("%v: of member %d %d flows are missing", e.Key, id, n)
			}
		}
		if few, err := f.mux.listFlows(e.Key, 2); err != nil || len(few) != 2 {
			t.Errorf("%v: %d of at most 2 flows, %v", e.Key, len(few), err)
		}
	}
}

// TestNATTooBig: what the server's link cannot take is answered from the VIP.
func TestNATTooBig(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		servers := natServers()
		for i := range servers {
			for j := range servers[i].Members {
				servers[i].Members[j].MTU = 1400
			}
		}
		f := newNATFixture(t, servers...)
		p := natPacket(v6, false, 1000, wire.SYN)
		l4 := p.Payload.(wire.TCP)
		l4.Data = make([]byte, 1400)
		p.Payload = l4
		before := f.reasonsNow()
		verdict, out := f.run(p.Frame())
		if got := f.countedSince(before); verdict != 3 || fmt.Sprint(got) != "[ptb_sent]" {
			t.Fatalf("verdict %d, counted %v", verdict, got)
		}
		h, err := wire.ParseFrame(out)
		must(t, err)
		if h.Src != p.Dst || h.Dst != p.Src {
			t.Errorf("from %v to %v", h.Src, h.Dst)
		}
	}
}

// TestNATAdmits: limits and source lists of the VIP count before anything is remembered.
func TestNATAdmits(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	s := MuxState{RingKeys: testKeys, Endpoints: natServers(), VIPs: []MuxVIP{
		{VIP: muxVIP4, Limits: lb.Limits{Connections: 1}},
		{VIP: muxVIP6, Sources: &SourceList{Digest: [32]byte{1}, Deny: []netip.Prefix{netip.PrefixFrom(muxClient6, 128)}}},
	}}
	f.apply(s)
	f.setHops(hopsTo(s))
	f.checkNAT(natPacket(true, false, 1000, wire.SYN).Frame(), natWant{reason: "source_denied"})
	limited := 0
	for from := range uint16(40) {
		before := f.reasonsNow()
		f.run(natPacket(false, from%2 == 0, 1000+from, wire.SYN).Frame())
		if fmt.Sprint(f.countedSince(before)) == "[new_flow_limited]" {
			limited++
		}
	}
	if limited == 0 || limited == 40 {
		t.Errorf("%d of 40 flows refused", limited)
	}
}

// TestNATTagged: frames with VLAN tags are answered with these tags, and a server's may have some.
func TestNATTagged(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	tag := func(frame []byte) []byte {
		return append(append(append([]byte{}, frame[:12]...), 0x81, 0, 0, 42), frame[12:]...)
	}
	p := natPacket(false, false, 1000, wire.SYN)
	there := f.toServer(p)
	f.checkNAT(tag(p.Frame()), there)
	answer := serverSays(*there.packet)
	back := f.toClient(answer)
	for _, frame := range [][]byte{answer.Frame(), tag(answer.Frame())} {
		before := f.reasonsNow()
		_, out := f.run(frame)
		if want := tag(back.packet.Frame()); string(out) != string(want) {
			t.Fatalf("got  %x\nwant %x, counted %v", out, want, f.countedSince(before))
		}
	}
	stranger := answer
	stranger.Dst = netip.MustParseAddr("10.10.0.212")
	f.checkNAT(tag(stranger.Frame()), natWant{reason: "pass_not_ours", pass: true})
}

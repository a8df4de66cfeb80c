package dataplane

import (
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// natView is a session of path nat.
type natView struct {
	member      uint16
	lip, server netip.AddrPort
	class       FlowClass
	age         time.Duration
}

// natFamily is how many addresses of a family a mux sends from.
func natFamily(addresses []NATAddress, is4 bool) (n int) {
	for _, a := range addresses {
		if a.Addr.Is4() == is4 {
			n++
		}
	}
	return n
}

// followNAT ends the walk of a packet to an endpoint of path nat.
func (t *Trace) followNAT(p Packet, e endpointView, key lb.EndpointKey, hash uint64, view tableView) {
	s, known, addresses := view.nat(p)
	if known {
		m, present := e.members[s.member]
		t.step("a session of it is known: member %d, from %v to %v, %s, last packet %s ago", s.member, s.lip, s.server, s.class, s.age)
		switch {
		case !present || !m.alive:
			t.step("member %d is %s: another is chosen, and gets a session of its own", s.member, unusable(m, present))
		case m.server(p.Port) != s.server:
			t.step("member %d is another server now, %v: it gets a session of its own", s.member, m.server(p.Port))
		case p.Segment == SegmentOpening && s.class == FlowClosing && !m.choosable:
			t.step("a SYN begins another connection, and member %d takes no new ones", s.member)
		default:
			t.Verdict, t.Member, t.Outer, t.Source = traceForwarded, s.member, m.outer, s.lip.Addr()
			t.step("rewritten: from %v to %v", s.lip, s.server)
			return
		}
	} else {
		t.step("there is no session of it")
	}
	if _, ok := t.followCookie(p, e); !ok && !t.followClient(p, e, key, view) && !t.schedule(e, p, hash) {
		t.choose(e, hash)
	}
	if t.Verdict != traceForwarded {
		return
	}
	if n := natFamily(addresses, p.VIP.Is4()); n > 0 {
		t.step("rewritten: from a free port of one of %d addresses to %v", n, e.members[t.Member].server(p.Port))
		return
	}
	t.Verdict, t.Outer = traceNATNoAddress, netip.Addr{}
	t.step("this mux has no address to send from to servers")
}

// server is where packets of path nat to a port of the VIP go.
func (m memberView) server(vport uint16) netip.AddrPort {
	if m.port != 0 {
		vport = m.port
	}
	return netip.AddrPortFrom(m.outer, vport)
}

// nat implements tableView.
func (v tablesView) nat(p Packet) (s natView, known bool, addresses []NATAddress) {
	var (
		key    = muxNatKey{Sport: p.ClientPort, Dport: p.Port, Protocol: uint8(p.Protocol)}
		record muxNatSession
	)
	key.SrcHi, key.SrcLo = storedHalves(p.Client)
	key.DstHi, key.DstLo = storedHalves(p.VIP)
	addresses = v.t.mem.addressesOfNAT()
	if v.t.mem.natSessions == nil || v.t.mem.natSessions.Lookup(&key, &record) != nil {
		return natView{}, false, addresses
	}
	return natView{
		member: record.Member, class: record.class(), age: time.Duration(record.idleFor(v.tick)) * v.t.tick,
		lip: netip.AddrPortFrom(ofHalves(record.LipHi, record.LipLo), record.Lport), server: netip.AddrPortFrom(ofHalves(record.DipHi, record.DipLo), record.Dport),
	}, true, addresses
}

// nat implements tableView: the fake has no sessions.
func (v fakeView) nat(Packet) (natView, bool, []NATAddress) {
	return natView{}, false, v.f.natAddresses
}

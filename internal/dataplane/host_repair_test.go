package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// Another host with members, and one of its servers.
const (
	peer4, peer6 = "10.20.9.1", "2001:db8:20:9::1"
	away4, away6 = "10.20.9.11", "2001:db8:20:9::11"
)

var repairHash = [16]byte{7, 0, 3, 200, 1, 99, 4, 12, 1, 2, 3, 4, 5, 6, 7, 8}

// displaced is an endpoint of which the slot of one flow was another member's before: members 0 (and 2) are here, 1 is away.
func displaced(b plan.Binding, flow packet, current, former uint16, more ...HostTarget) *HostRepair {
	r := &HostRepair{
		Key: b.Key, Hash: repairHash, Turns: ring.Fold(slices.Repeat([]uint16{0}, 1<<9)),
		Source: netip.MustParseAddr(host4), Peers: []netip.Addr{netip.MustParseAddr(peer4)},
		Targets: append(more, HostTarget{ID: 0, Outer: b.Outer, Here: true}, HostTarget{ID: 1, Outer: netip.MustParseAddr(away4)}),
	}
	if !b.Outer.Is4() {
		r.Source, r.Peers, r.Targets[len(r.Targets)-1].Outer = netip.MustParseAddr(host6), []netip.Addr{netip.MustParseAddr(peer6)}, netip.MustParseAddr(away6)
	}
	hash := ring.FlowHash(ring.KeyOf(repairHash), 0, netip.MustParseAddr(flow.src), netip.MustParseAddr(flow.dst), 6, flow.sport, flow.dport)
	r.Turns.Slots[ring.Slot(hash, 9)] = ring.Turns(uint32(former)<<16 | uint32(current))
	return r
}

func (e *hostEnv) applyRepair(r *HostRepair, bindings ...plan.Binding) {
	e.t.Helper()
	must(e.t, e.host.Apply(HostState{TunnelSources: tunnelSources, MTU: 1500, Bindings: bindings, Repairs: []*HostRepair{r}}))
}

// sentOn is a frame as the next host gets it: from this one, one hop less to live.
func sentOn(f []byte, src, dst string, member uint16) []byte {
	f = slices.Clone(f)
	ip := f[14:]
	s, d := netip.MustParseAddr(src).AsSlice(), netip.MustParseAddr(dst).AsSlice()
	udp := 20
	if len(s) == 4 {
		copy(ip[12:], s)
		copy(ip[16:], d)
		ip[8]--
		ip[10], ip[11] = 0, 0
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		for sum > 0xffff {
			sum = sum&0xffff + sum>>16
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	} else {
		copy(ip[8:], s)
		copy(ip[24:], d)
		ip[7]--
		udp = 40
	}
	if ip[9] == 17 && len(s) == 4 || ip[6] == 17 && len(s) == 16 {
		binary.BigEndian.PutUint16(ip[udp+8+12:], member)
		ip[udp+8+4] = 0x10
	}
	return f
}

// TestHostRepair: a packet of a flow that this host does not know goes to the owner before, in its tunnel, unless a host sent it, it is
// a SYN, the flow is known, or nobody had its slot.
func TestHostRepair(t *testing.T) {
	for _, c := range []struct {
		name                           string
		binding                        plan.Binding
		client, vip, source, dip, peer string
		host, away                     string
		wrap                           func(src string, inner []byte) []byte
	}{
		{"ipip", bind(lb.TCP, vip4, dip4, dip4, true), client4, vip4, source4, dip4, peer4, host4, away4,
			func(src string, in []byte) []byte { return tunnel(t, src, dip4, in) }},
		{"gue", gue(0, bind(lb.TCP, vip4, host4, dip4, true)), client4, vip4, source4, dip4, peer4, host4, away4,
			func(src string, in []byte) []byte { return gueTunnel(t, src, host4, 0, in) }},
		{"ip6", bind(lb.TCP, vip6, dip6, dip6, true), client6, vip6, source6, dip6, peer6, host6, away6,
			func(src string, in []byte) []byte { return tunnel(t, src, dip6, in) }},
		{"gue6", gue(0, bind(lb.TCP, vip6, host6, dip6, true)), client6, vip6, source6, dip6, peer6, host6, away6,
			func(src string, in []byte) []byte { return gueTunnel(t, src, host6, 0, in) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newHostEnv(t).quiet()
			flow := packet{protocol: lb.TCP, src: c.client, dst: c.vip, sport: 40001, dport: 80, ack: true, payload: "x"}
			r := displaced(c.binding, flow, 0, 1)
			e.applyRepair(r, c.binding)
			delivered := func(p packet) []byte {
				p.dst, p.dport = c.dip, 8080
				return frame(p.bytes(t))
			}
			in := c.wrap(c.source, flow.bytes(t))
			e.expect("unknown", in, verdictRedirect, sentOn(in, c.host, c.away, 1), "repaired_away")
			e.expect("unknown again: nothing was remembered", in, verdictRedirect, sentOn(in, c.host, c.away, 1), "repaired_away")
			other := flow
			other.sport = 40002
			e.expect("of a slot that nobody had", c.wrap(c.source, other.bytes(t)), verdictRedirect, delivered(other), "in_delivered", "repair_nobody")
			e.expect("known now", c.wrap(c.source, other.bytes(t)), verdictRedirect, delivered(other), "in_delivered")
			tired := slices.Clone(in)
			if at := 14 + 8; c.host == host4 {
				tired[at] = 1
			} else {
				tired[14+7] = 1
			}
			if c.host == host6 { // IPv4's checksum says so first
				e.expect("sent on too often", tired, verdictDrop, nil, "repair_failed")
			}
			// A mux that is behind sends to the former owner what began at the present one.
			behind := displaced(c.binding, flow, 1, 0)
			e.applyRepair(behind, c.binding)
			e.expect("mux behind", in, verdictRedirect, sentOn(in, c.host, c.away, 1), "repaired_away")
			e.applyRepair(r, c.binding)
			syn := flow
			syn.syn, syn.ack, syn.payload = true, false, ""
			e.expect("opens", c.wrap(c.source, syn.bytes(t)), verdictRedirect, delivered(syn), "in_delivered")
			e.expect("known", in, verdictRedirect, delivered(flow), "in_delivered")
			// From another host nothing goes on.
			flow.sport = 40003
			e.applyRepair(displaced(c.binding, flow, 0, 1), c.binding)
			in = c.wrap(c.peer, flow.bytes(t))
			e.expect("from a peer", in, verdictRedirect, delivered(flow), "in_delivered", "repair_arrived")
			// Hosts send on no SYNs, fragments and other protocols: nobody opens a connection in a host's name.
			begins := flow
			begins.sport, begins.syn, begins.ack, begins.payload = 40004, true, false, ""
			e.expect("a SYN from a peer", c.wrap(c.peer, begins.bytes(t)), verdictDrop, nil, "in_bad_source")
			begins.ack = true
			e.expect("a SYN-ACK from a peer", c.wrap(c.peer, begins.bytes(t)), verdictDrop, nil, "in_bad_source")
			begins.protocol = lb.UDP
			e.expect("UDP from a peer", c.wrap(c.peer, begins.bytes(t)), verdictDrop, nil, "in_bad_source")
			long := flow
			long.payload = string(make([]byte, 64))
			for i, part := range cut(long.bytes(t), 0x77, 32) {
				e.expect(fmt.Sprintf("fragment %d from a peer", i), c.wrap(c.peer, part), verdictDrop, nil, "in_bad_source")
			}
			e.apply(c.binding)
			e.expect("no peer any more", in, verdictDrop, nil, "in_bad_source")
		})
	}
}

// TestHostRepairHere: the owner before may be another member of this host.
func TestHostRepairHere(t *testing.T) {
	e := newHostEnv(t).quiet()
	other := "10.20.1.13"
	e.route(other, "vm0")
	one, two := bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, vip4, other, other, true)
	two.Member = 2
	flow := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true, payload: "x"}
	e.applyRepair(displaced(one, flow, 0, 2, HostTarget{ID: 2, Outer: two.Outer, Here: true}), one, two)
	out := flow
	out.dst, out.dport = other, 8080
	e.expect("to the other", tunnel(t, source4, dip4, flow.bytes(t)), verdictRedirect, frame(out.bytes(t)), "in_delivered", "repaired_here")
}

// TestHostRepairsErrors: an ICMP error goes the way of the flow that it is about.
func TestHostRepairsErrors(t *testing.T) {
	e := newHostEnv(t).quiet()
	b := bind(lb.TCP, vip4, dip4, dip4, true)
	flow := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true}
	answer := packet{protocol: lb.TCP, src: vip4, dst: client4, sport: 80, dport: 40001, ack: true, payload: "an answer that is too big"}
	e.applyRepair(displaced(b, flow, 0, 1), b)
	in := tunnel(t, source4, dip4, icmp(t, router4, vip4, 3, 4, 1400, quote(answer.bytes(t), 28)))
	e.expect("about a flow that moved", in, verdictRedirect, sentOn(in, host4, away4, 1), "repaired_away")
}

// TestHostRepairsOwned: with a VIP that the server owns a connection is known when a socket of this machine has it; where nobody listens
// nobody can say.
func TestHostRepairsOwned(t *testing.T) {
	e := newHostEnv(t).quiet()
	b := bind(lb.TCP, owned4, host4, host4, false)
	flow := packet{protocol: lb.TCP, src: client4, dst: owned4, sport: 40001, dport: 80, ack: true, payload: "x"}
	e.applyRepair(displaced(b, flow, 0, 1), b)
	in := tunnel(t, source4, host4, flow.bytes(t))
	e.expect("nobody listens", in, verdictPass, frame(flow.bytes(t)), "in_untouched")
	e.listen(owned4 + ":80")
	e.expect("unknown to the server", in, verdictRedirect, sentOn(in, host4, away4, 1), "repaired_away")
}

// TestHostRepairsOwnedByCookie: where the server's own clock carries the cookie, a packet whose connection no socket has goes to the member that the cookie names: it
// stays where that is the one here, as what ends a handshake does that the host answered itself. Without a right cookie it goes as the ring says.
func TestHostRepairsOwnedByCookie(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.listen(owned4 + ":80")
	b := bind(lb.TCP, owned4, host4, host4, false)
	b.Cookie = true
	keys := bakedKeys(owned4, 1)
	for _, c := range []struct {
		name    string
		id      uint16
		ago     uint32
		wrong   uint16 // bits of the cookie that are changed
		slot    bool   // the flow's slot was the other member's before
		away    bool
		reasons []string
	}{
		{"of the member here, from a slot that was another's", 0, 5, 0, true, false, []string{"in_untouched"}},
		{"of the member here, ten minutes old", 0, 600_000, 0, true, false, []string{"in_untouched"}},
		{"of the other member, from a slot that was always its own", 1, 5, 0, false, true, []string{"repaired_away"}},
		{"of a member that is not known", 9, 5, 0, false, false, []string{"in_untouched", "repair_nobody"}},
		{"none, from a slot that was another's", 0, 5, 1 << 11, true, true, []string{"repaired_away"}},
		{"none, from a slot that was always its own", 1, 5, 1 << 11, false, false, []string{"in_untouched", "repair_nobody"}},
		{"too old, from a slot that was another's", 0, 1_100_000, 0, true, true, []string{"repaired_away"}},
	} {
		flow := packet{protocol: lb.TCP, src: client4, dst: owned4, sport: 40001, dport: 80, ack: true, payload: "x"}
		prf := cookie.PRF(bakedKey(1).Key, cookie.Flow{
			Client: netip.AddrPortFrom(netip.MustParseAddr(client4), flow.sport), VIP: netip.AddrPortFrom(netip.MustParseAddr(owned4), 80),
		})
		flow.options = usual(1, cookie.PlaceOffset(sharedClock()-c.ago, cookie.EncodeShort(prf, 1, c.id, secretUnder(bakedKey(1)))^c.wrong))
		turned := flow
		if !c.slot {
			turned.sport++
		}
		r := displaced(b, turned, 0, 1)
		must(t, e.host.Apply(HostState{TunnelSources: tunnelSources, MTU: 1500, Bindings: []plan.Binding{b}, Repairs: []*HostRepair{r}, Cookies: []plan.CookieKeys{keys}}))
		in := tunnel(t, source4, host4, flow.bytes(t))
		if c.away {
			e.expect(c.name, in, verdictRedirect, sentOn(in, host4, away4, 1), c.reasons...)
		} else {
			e.expect(c.name, in, verdictPass, frame(flow.bytes(t)), c.reasons...)
		}
	}
}

// TestHostRepairPlaces: changes give back what they took, also across a restart, and what does not fit is counted.
func TestHostRepairPlaces(t *testing.T) {
	e := newHostEnv(t).quiet()
	b := bind(lb.TCP, vip4, dip4, dip4, true)
	flow := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true, payload: "x"}
	in := tunnel(t, source4, dip4, flow.bytes(t))
	for range 3 {
		e.applyRepair(displaced(b, flow, 0, 1), b)
	}
	tables := e.host.repairs
	e.free()
	if tables.slotSpace.used != 1<<9 || tables.targetSpace.used != 8 {
		t.Errorf("%d slots and %d targets in use", tables.slotSpace.used, tables.targetSpace.used)
	}
	must(t, e.host.Close())
	e.open()
	e.quiet()
	e.expect("after a restart", in, verdictRedirect, sentOn(in, host4, away4, 1), "repaired_away")
	e.applyRepair(displaced(b, flow, 0, 1), b)
	e.expect("after its plan", in, verdictRedirect, sentOn(in, host4, away4, 1), "repaired_away")
	e.free()
	if used := e.host.repairs.slotSpace.used; used != 1<<9 {
		t.Errorf("%d slots in use after a restart", used)
	}
	wide := displaced(b, flow, 0, 1)
	wide.Turns = ring.Folded{Code: 22, Slots: make([]ring.Turns, 1<<22)}
	e.applyRepair(wide, b)
	if c, err := e.host.Counters(); err != nil || c.Unrepaired != 1 {
		t.Errorf("unrepaired %d %v, want 1", c.Unrepaired, err)
	}
	e.apply(b)
	e.free()
	if used := e.host.repairs.slotSpace.used; used != 0 {
		t.Errorf("%d slots in use at the end", used)
	}
}

// free returns when the tables have freed all entries of past changes.
func (e *hostEnv) free() {
	e.t.Helper()
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	must(e.t, e.host.deferred.flushLocked())
}

// TestHostApplyDoesNotWait: a change of members, of cookie keys' VIPs and their removal return while a grace period lasts. A change that finds
// no room waits for one.
func TestHostApplyDoesNotWait(t *testing.T) {
	e := newHostEnv(t).quiet()
	wait, over, waits := e.host.deferred.wait, make(chan struct{}), atomic.Int32{}
	e.host.deferred.wait = func() error {
		waits.Add(1)
		<-over
		return wait()
	}
	b := bind(lb.TCP, vip4, dip4, dip4, true)
	b.Cookie = true
	flow := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true, payload: "x"}
	all := HostState{TunnelSources: tunnelSources, MTU: 1500, Bindings: []plan.Binding{b}, Cookies: []plan.CookieKeys{bakedKeys(vip4, 1)}}
	wide := displaced(b, flow, 0, 1)
	wide.Turns = ring.Folded{Code: 20, Slots: make([]ring.Turns, 1<<20)}
	for _, r := range []*HostRepair{displaced(b, flow, 0, 1), displaced(b, flow, 1, 0), wide} {
		all.Repairs = []*HostRepair{r}
		must(t, e.host.Apply(all))
	}
	none := HostState{TunnelSources: tunnelSources, MTU: 1500}
	must(t, e.host.Apply(none))
	e.host.mu.Lock()
	if used := e.host.repairs.slotSpace.used; used < 1<<20 {
		t.Errorf("%d slots in use within the grace period, want those of all changes", used)
	}
	e.host.mu.Unlock()
	if n := waits.Load(); n > 1 {
		t.Errorf("%d grace periods began, want one at most", n)
	}
	close(over)
	whole := displaced(b, flow, 0, 1)
	whole.Turns = ring.Folded{Code: 21, Slots: make([]ring.Turns, len(e.host.repairs.slots))}
	all.Repairs = []*HostRepair{whole}
	must(t, e.host.Apply(all))
	if c, err := e.host.Counters(); err != nil || c.Unrepaired != 0 {
		t.Errorf("unrepaired %d %v, want a place for an endpoint that takes all slots", c.Unrepaired, err)
	}
	must(t, e.host.Apply(none))
	e.free()
	if used, cells := e.host.repairs.slotSpace.used, len(e.host.flows.cookies.free); used != 0 || cells != len(e.host.flows.cookies.cells) {
		t.Errorf("%d slots in use and %d of %d cells free at the end", used, cells, len(e.host.flows.cookies.cells))
	}
}

// TestReadCookiesTwice: an agent that was killed within the grace period left two cells of one VIP: the one with live keys counts.
func TestReadCookiesTwice(t *testing.T) {
	for _, live := range []uint32{1, 3} {
		cells := make([]hostHostCookieKeys, 5)
		cells[1].Vip, cells[3].Vip, cells[live].Use = [16]byte{7}, [16]byte{7}, cookieLive(0)
		read := readCookies(cells)
		if n := read.numbers[cookieVIP{0, [16]byte{7}}]; n != live || len(read.free) != 4 || slices.Contains(read.free, live) {
			t.Errorf("cell %d is live: number %d, free %v", live, n, read.free)
		}
		if idle := 4 - live; cells[idle] != (hostHostCookieKeys{}) {
			t.Errorf("cell %d is live: cell %d is not cleared", live, idle)
		}
	}
}

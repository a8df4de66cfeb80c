package dataplane

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/wire"
)

// randomState is a wanted state of some endpoints out of a small set, so that states overlap.
func randomState(r *rand.Rand, most int) MuxState {
	s := MuxState{RingKeys: testKeys, TunnelSources: sources}
	seen := map[lb.EndpointKey]bool{}
	for range r.IntN(most + 1) {
		vip := muxVIP4
		if r.IntN(2) == 0 {
			vip = muxVIP6
		}
		e := MuxEndpoint{
			Key:     lb.EndpointKey{VIP: vip, Protocol: []lb.Protocol{lb.TCP, lb.UDP}[r.IntN(2)], Port: uint16(1 + r.IntN(12))},
			KeySlot: uint8(r.IntN(2)), RingCode: uint8(6 + r.IntN(2)),
		}
		if seen[e.Key] {
			continue
		}
		seen[e.Key] = true
		var members []ring.Member
		for id := range uint16(12) {
			if r.IntN(3) != 0 {
				continue
			}
			outer := netip.AddrFrom4([4]byte{10, 20, 1, byte(id)})
			m := MuxMember{ID: id, Outer: outer, MTU: uint32(1400 + 100*r.IntN(2)), Choosable: r.IntN(4) != 0, Alive: r.IntN(4) != 0}
			e.Members = append(e.Members, m)
			if m.Choosable {
				members = append(members, ring.Member{ID: id, DIP: outer, Port: 80, Weight: 1})
			}
		}
		e.Ring = ring.Build(e.RingCode, members)
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// checkTables compares what readers see with the model's state, key by key, also for keys that should not be there.
func (f *muxFixture) checkTables() {
	f.t.Helper()
	wanted := map[lb.EndpointKey]MuxEndpoint{}
	for _, e := range f.model.state.Endpoints {
		wanted[e.Key] = e
	}
	view := tablesView{t: f.mux.tables}
	for _, vip := range []netip.Addr{muxVIP4, muxVIP6} {
		for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
			for port := range uint16(14) {
				key := lb.EndpointKey{VIP: vip, Protocol: protocol, Port: port}
				want, ok := wanted[key]
				got, found := view.endpoint(key)
				if ok != found {
					f.t.Fatalf("endpoint %v: found %v, wanted %v", key, found, ok)
				}
				if ok {
					f.checkEndpoint(want, got)
				}
			}
		}
	}
}

func (f *muxFixture) checkEndpoint(want MuxEndpoint, got endpointView) {
	f.t.Helper()
	if !slices.Equal(got.ring, want.Ring) || len(got.members) != len(want.Members) {
		f.t.Fatalf("endpoint %v: ring %v, members %v; wanted %v, %v", want.Key, got.ring, got.members, want.Ring, want.Members)
	}
	if len(want.Ring) > 0 && got.key != ring.KeyOf(testKeys[want.KeySlot]) {
		f.t.Fatalf("endpoint %v: wrong ring key", want.Key)
	}
	for _, m := range want.Members {
		g := got.members[m.ID]
		w := memberView{outer: m.Outer, mtu: m.MTU, choosable: m.Choosable, alive: f.model.alive[MemberKey{want.Key, m.ID}],
			resolved: f.model.hops[m.Outer] != NextHop{}}
		if g != w {
			f.t.Fatalf("endpoint %v: member %d is %+v, wanted %+v", want.Key, m.ID, g, w)
		}
	}
}

// readopt replaces the fixture's tables by ones that learn everything from memory, as a new process would.
func (f *muxFixture) readopt() {
	f.t.Helper()
	m := f.mux
	fresh := newMuxTables(m.memory, m.tables.tick, m.tables.guards.hz)
	fresh.hops.mac = m.tables.hops.mac
	m.tables = fresh
	if err := m.adopt(); err != nil {
		f.t.Fatal(err)
	}
}

// TestTablesAgainstModel applies random states, flips, next hops and restarts, and looks at everything after each.
func TestTablesAgainstModel(t *testing.T) {
	f, r := newMuxFixture(t), seeded(t)
	for range 300 {
		switch r.IntN(6) {
		case 0:
			f.readopt()
			f.checkTables()
			f.setHops(f.model.hops) // a new agent sets them anew; adopted are only those in use
		case 1:
			f.randomHops(r)
		case 2:
			f.randomFlips(r)
		case 3:
			f.apply(randomState(r, 30))
		default:
			f.change(randomState(r, 30))
		}
		f.checkTables()
	}
	f.change(MuxState{RingKeys: testKeys, TunnelSources: sources})
	f.checkEmpty()
}

func (f *muxFixture) randomHops(r *rand.Rand) {
	f.t.Helper()
	hops := map[netip.Addr]NextHop{}
	for id := range byte(12) {
		if r.IntN(3) != 0 {
			hops[netip.AddrFrom4([4]byte{10, 20, 1, id})] = NextHop{MAC: [6]byte{2, byte(r.IntN(4))}, Ifindex: 1 + r.IntN(3)}
		}
	}
	f.setHops(hops)
}

func (f *muxFixture) randomFlips(r *rand.Rand) {
	var flips []MemberAlive
	for _, e := range f.model.state.Endpoints {
		for _, m := range e.Members {
			if r.IntN(2) == 0 {
				flips = append(flips, MemberAlive{e.Key, m.ID, r.IntN(2) == 0})
			}
		}
	}
	f.setAlive(flips...)
	f.mux.SetAlive([]MemberAlive{{lb.EndpointKey{VIP: muxVIP4, Protocol: lb.TCP, Port: 999}, 1, true}})
}

// checkEmpty looks for leaks: after everything has gone, everything is free.
func (f *muxFixture) checkEmpty() {
	f.t.Helper()
	settle(f.t, f.mux)
	tables := f.mux.tables
	tables.sweepNow()
	for i := range tables.mem.slots {
		if v := tables.mem.slots[i].Value; v != uint64(muxEndpointSlotValueENDPOINT_SLOT_EMPTY) {
			f.t.Errorf("slot %d still holds %d", i, v)
		}
	}
	if _, ok := tables.rings.alloc(testLimits.RingWords); !ok {
		f.t.Error("ring words leaked")
	}
	if _, ok := tables.members.alloc(testLimits.Members); !ok {
		f.t.Error("member words leaked")
	}
	if _, ok := tables.ports.alloc(uint32(len(tables.mem.portRanges))); !ok {
		f.t.Error("port ranges leaked")
	}
	if _, ok := tables.guards.sources.blocks.alloc(uint32(len(tables.mem.sourceWords))); !ok {
		f.t.Error("words of source lists leaked")
	}
	for name, p := range map[string]*pool{
		"guards": tables.guards.indices, "source lists": tables.guards.sources.indices, "endpoints": tables.endpoints, "backends": tables.backends, "extras": tables.extras,
		"SNAT blocks": tables.snat.indices,
	} {
		if i := slices.Index(p.used, true); i >= 0 {
			f.t.Errorf("%s: index %d leaked", name, i)
		}
	}
}

// readable is all slots of the endpoint table that readers follow.
func (f *muxFixture) readable() string {
	var b strings.Builder
	for i, s := range f.mux.memory.slots {
		if s.Value >= uint64(muxEndpointSlotValueENDPOINT_SLOT_FIRST) {
			fmt.Fprintln(&b, i, s)
		}
	}
	return b.String()
}

// TestApplyAllOrNothing: a state that does not fit changes nothing, and what fits afterwards still does.
func TestApplyAllOrNothing(t *testing.T) {
	f := newMuxFixture(t)
	small := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 1, "10.20.1.1")}}
	f.apply(small)
	full := func(n int, grow func(e *MuxEndpoint)) MuxState {
		s := MuxState{RingKeys: testKeys, TunnelSources: sources}
		for port := range n {
			e := endpointOf(muxVIP4, lb.TCP, uint16(1+port), "10.20.1.1")
			grow(&e)
			s.Endpoints = append(s.Endpoints, e)
		}
		return s
	}
	for name, c := range map[string]struct {
		state MuxState
		want  string
	}{
		"endpoints": {full(200, func(*MuxEndpoint) {}), "at most 128, VIPs included (--max-endpoints)"},
		"rings":     {full(10, func(e *MuxEndpoint) { e.RingCode, e.Ring = 12, make([]uint16, 4096) }), "rings: no room for 4096 slots: 16384 slots in all (--ring-slots)"},
		"members":   {full(5, func(e *MuxEndpoint) { e.Members[0].ID, e.Ring = 500, nil }), "1024 in all (--max-members)"},
		"backends": {full(20, func(e *MuxEndpoint) {
			for id := range uint16(20) {
				e.Members = append(e.Members, MuxMember{ID: 1 + id, Outer: netip.AddrFrom4([4]byte{10, byte(e.Key.Port), 0, byte(id)})})
			}
		}), "backends: no room: at most 256 (--max-backends)"},
		"source words": {MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: small.Endpoints,
			VIPs: []MuxVIP{{VIP: muxVIP4, Sources: manySources(20000)}}}, "source lists: no room for 20000 words: 8192 in all"},
		"port ranges": {ranges(), "port ranges: no room for 6 intervals: 256 in all (--max-endpoints)"},
		"twice":       {MuxState{Endpoints: slices.Repeat(small.Endpoints, 2)}, "given twice"},
		"no source":   {MuxState{Endpoints: small.Endpoints}, "no tunnel source"},
		"ring size":   {full(1, func(e *MuxEndpoint) { e.Ring = e.Ring[:10] }), "must have 1<<code"},
		"ring id":     {full(1, func(e *MuxEndpoint) { e.Ring[3] = 9 }), "is not among the members"},
		"VNI":         {full(1, func(e *MuxEndpoint) { e.Key.VNI = 1 }), "not supported by this version"},
	} {
		before := f.readable()
		if err := f.mux.Apply(c.state); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, expected %q", name, err, c.want)
		}
		if after := f.readable(); after != before {
			t.Errorf("%s: refused, but the records changed: %s, then %s", name, before, after)
		}
		f.checkTables()
	}
	f.apply(MuxState{})
	f.checkEmpty()
}

// manySources is a list with n words of turns.
func manySources(n int) *SourceList {
	l := &SourceList{Digest: [32]byte{1}}
	for i := range n {
		l.Deny = append(l.Deny, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32))
	}
	return l
}

// ranges are so many that the intervals of the second VIP have no room.
func ranges() MuxState {
	s := MuxState{RingKeys: testKeys, TunnelSources: sources}
	for i := range 86 {
		e := endpointOf(netip.AddrFrom4([4]byte{203, 0, 113, byte(i / 80)}), lb.TCP, uint16(10+10*i), "10.20.1.1")
		e.Key.PortEnd = e.Key.Port + 5
		s.Endpoints = append(s.Endpoints, e)
		if i == 0 {
			e.Key.Port, e.Key.PortEnd = 0, 65535
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s
}

// TestTraceEqualsProgram asks where a flow goes, and sends it.
func TestTraceEqualsProgram(t *testing.T) {
	f, r := basicFixture(t), seeded(t)
	s := f.model.state
	f.setAlive(MemberAlive{s.Endpoints[0].Key, 0, false}, MemberAlive{s.Endpoints[0].Key, 2, false})
	var fake FakeMux
	if err := fake.Apply(s); err != nil {
		t.Fatal(err)
	}
	fake.SetNextHops(f.model.hops)
	fake.SetAlive([]MemberAlive{{s.Endpoints[0].Key, 0, false}, {s.Endpoints[0].Key, 2, false}})
	for range 500 {
		p, port := tcp4([]uint16{80, 81, 82, 84}[r.IntN(4)]), uint16(r.Uint32())
		if r.IntN(2) == 0 {
			p = tcp6(80)
		}
		tcp := p.Payload.(wire.TCP)
		tcp.SrcPort = port
		p.Payload = tcp
		q := Packet{Client: p.Src, VIP: p.Dst, Protocol: lb.TCP, ClientPort: port, Port: tcp.DstPort}
		got, err := f.mux.Trace(q)
		if err != nil {
			t.Fatal(err)
		}
		twin, err := fake.Trace(q)
		if err != nil || fmt.Sprint(twin) != fmt.Sprint(got) {
			t.Fatalf("the fake traces otherwise: %+v, %v; the mux %+v", twin, err, got)
		}
		if want := f.check(p.Frame()); got.Verdict != want.reason {
			t.Fatalf("%+v: traced %+v, sent: %s", q, got, want.reason)
		} else if want.member != nil && (got.Member != want.member.Member || !outerIs(want.frame, got.Source, got.Outer)) {
			t.Fatalf("%+v: traced %+v, sent to member %d: %x", q, got, want.member.Member, want.frame)
		}
	}
}

// outerIs says whether a frame goes from src to dst.
func outerIs(frame []byte, src, dst netip.Addr) bool {
	h, err := wire.ParseFrame(frame)
	return err == nil && h.Src == src && h.Dst == dst
}

// TestNewcomersBeginWithNothing: neither counters nor buckets of those that had their places before are theirs.
func TestNewcomersBeginWithNothing(t *testing.T) {
	f := newMuxFixture(t)
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{
		endpointOf(muxVIP4, lb.TCP, 80, "10.20.1.11", "10.20.2.11", "10.20.3.11"),
	}}
	f.apply(s)
	f.setHops(hopsTo(s))
	for port := range uint16(50) {
		f.check(tcpSegment(80, port, wire.SYN).Frame())
	}
	f.apply(MuxState{})
	if _, err := f.mux.Sweep(); err != nil {
		t.Fatal(err)
	}
	for i := range f.mux.memory.pings {
		f.mux.memory.pings[i] = f.model.policy.now << bucketShift
	}
	next := endpointOf(muxVIP6, lb.TCP, 80, "10.20.1.11", "10.20.2.11", "10.20.3.11")
	next.Members, next.Ring = next.Members[2:], without(next, 0).Ring
	for i := range next.Ring {
		next.Ring[i] = 2
	}
	s.Endpoints = []MuxEndpoint{next}
	f.apply(s)
	ping6 := tcp6(0)
	ping6.Payload = wire.Echo{ID: 1}
	for range 100 {
		if got := f.check(ping6.Frame()); got.reason != "echo_replied" {
			t.Fatal(got.reason)
		}
	}
	grown := endpointOf(muxVIP6, lb.TCP, 80, "10.20.1.11", "10.20.2.11", "10.20.3.11", "10.20.4.11", "10.20.5.11", "10.20.6.11")
	s.Endpoints = []MuxEndpoint{grown}
	f.apply(s)
	c, err := f.mux.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if c.Endpoints[grown.Key] != (Counter{}) {
		t.Errorf("a new endpoint has counted %+v, its members %+v", c.Endpoints, c.Members)
	}
}

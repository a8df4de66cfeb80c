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
	view := tablesView{f.mux.tables}
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
	fresh := newMuxTables(m.memory, &m.objects.muxMaps)
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
		default:
			f.apply(randomState(r, 30))
		}
		f.checkTables()
	}
	f.apply(MuxState{})
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
	tables := f.mux.tables
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
	for name, p := range map[string]*pool{"endpoints": tables.endpoints, "backends": tables.backends} {
		if i := slices.Index(p.used, true); i >= 0 {
			f.t.Errorf("%s: index %d leaked", name, i)
		}
	}
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
		"endpoints": {full(200, func(*MuxEndpoint) {}), "endpoints: no room"},
		"rings":     {full(10, func(e *MuxEndpoint) { e.RingCode, e.Ring = 12, make([]uint16, 4096) }), "rings: no room"},
		"members":   {full(5, func(e *MuxEndpoint) { e.Members[0].ID, e.Ring = 500, nil }), "members: no room"},
		"backends": {full(20, func(e *MuxEndpoint) {
			for id := range uint16(20) {
				e.Members = append(e.Members, MuxMember{ID: 1 + id, Outer: netip.AddrFrom4([4]byte{10, byte(e.Key.Port), 0, byte(id)})})
			}
		}), "backends: no room"},
		"twice":     {MuxState{Endpoints: slices.Repeat(small.Endpoints, 2)}, "given twice"},
		"no source": {MuxState{Endpoints: small.Endpoints}, "no tunnel source"},
		"ring size": {full(1, func(e *MuxEndpoint) { e.Ring = e.Ring[:10] }), "must have 1<<code"},
		"ring id":   {full(1, func(e *MuxEndpoint) { e.Ring[3] = 9 }), "is not among the members"},
		"VNI":       {full(1, func(e *MuxEndpoint) { e.Key.VNI = 1 }), "not supported by this version"},
	} {
		before := fmt.Sprintf("%+v", f.mux.memory.endpoints[:4])
		if err := f.mux.Apply(c.state); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, expected %q", name, err, c.want)
		}
		if after := fmt.Sprintf("%+v", f.mux.memory.endpoints[:4]); after != before {
			t.Errorf("%s: refused, but the records changed: %s, then %s", name, before, after)
		}
		f.checkTables()
	}
	f.apply(MuxState{})
	f.checkEmpty()
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

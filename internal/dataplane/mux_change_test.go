package dataplane

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// changeBetween is the change from one state to another; some is false when it cannot be told as one. Endpoints that stay keep
// their rings.
func changeBetween(from, to MuxState) (by MuxChange, some bool) {
	if !maps.Equal(from.RingKeys, to.RingKeys) || !slices.Equal(from.TunnelSources, to.TunnelSources) {
		return MuxChange{}, false
	}
	type vip struct {
		endpoints []MuxEndpoint
		policy    MuxVIP
	}
	collect := func(s MuxState) map[lb.EndpointKey]*vip {
		out := map[lb.EndpointKey]*vip{}
		for _, e := range s.Endpoints {
			k := vipKey(e.Key)
			if out[k] == nil {
				out[k] = &vip{policy: MuxVIP{VNI: k.VNI, VIP: k.VIP}}
			}
			out[k].endpoints = append(out[k].endpoints, e)
		}
		for _, v := range s.VIPs {
			if out[v.key()] == nil && v.Outbound {
				out[v.key()] = &vip{}
			}
			if out[v.key()] != nil {
				out[v.key()].policy = v
			}
		}
		return out
	}
	before, after := collect(from), collect(to)
	for k := range before {
		if after[k] == nil {
			by.VIPs = append(by.VIPs, MuxVIP{VNI: k.VNI, VIP: k.VIP})
		}
	}
	slices.SortFunc(by.VIPs, func(a, b MuxVIP) int { return a.VIP.Compare(b.VIP) })
	var done []lb.EndpointKey // in the order of the state, so that equal states are staged in equal steps
	for _, e := range to.Endpoints {
		k := vipKey(e.Key)
		if v, was := after[k], before[k]; !slices.Contains(done, k) && !reflect.DeepEqual(v, was) {
			by.VIPs = append(by.VIPs, v.policy)
			for _, e := range v.endpoints {
				stays := func(o MuxEndpoint) bool { return reflect.DeepEqual(o, e) }
				if was != nil && slices.ContainsFunc(was.endpoints, stays) {
					e.Ring, e.BackupRing, e.KeepRings = nil, nil, true
				}
				by.Endpoints = append(by.Endpoints, e)
			}
		}
		done = append(done, k)
	}
	for _, v := range to.VIPs {
		if v.Outbound && !slices.Contains(done, v.key()) && !reflect.DeepEqual(after[v.key()], before[v.key()]) {
			by.VIPs = append(by.VIPs, v)
		}
	}
	return by, true
}

// TestChangeAllOrNothing: a change that is refused changes nothing, neither does one before there is a state.
func TestChangeAllOrNothing(t *testing.T) {
	f := newMuxFixture(t)
	first := endpointOf(muxVIP4, lb.TCP, 1, "10.20.1.1")
	about := []MuxVIP{{VIP: muxVIP4}}
	full := func(n int, grow func(e *MuxEndpoint)) MuxChange {
		c := MuxChange{VIPs: about}
		for port := range n {
			e := endpointOf(muxVIP4, lb.TCP, uint16(1+port), "10.20.1.1")
			grow(&e)
			c.Endpoints = append(c.Endpoints, e)
		}
		return c
	}
	tables := []interface{ Change(MuxChange) error }{f.mux, &FakeMux{}}
	for _, m := range tables {
		if err := m.Change(full(1, func(*MuxEndpoint) {})); err == nil || !strings.Contains(err.Error(), "no whole state") {
			t.Errorf("before the first state: %v", err)
		}
	}
	state := MuxState{RingKeys: testKeys, TunnelSources: sources[:1], Endpoints: []MuxEndpoint{first}}
	f.apply(state)
	for name, c := range map[string]struct {
		by   MuxChange
		want string
		fake bool // refuses it too
	}{
		"endpoints": {full(200, func(*MuxEndpoint) {}), "at most 128, VIPs included (--max-endpoints)", false},
		"rings":     {full(10, func(e *MuxEndpoint) { e.RingCode, e.Ring = 12, make([]uint16, 4096) }), "rings: no room for 4096 slots", false},
		"sources": {MuxChange{VIPs: []MuxVIP{{VIP: muxVIP4, Sources: manySources(20000)}}, Endpoints: state.Endpoints},
			"source lists: no room for 20000 words", false},
		"twice":        {MuxChange{VIPs: about, Endpoints: slices.Repeat(state.Endpoints, 2)}, "given twice", true},
		"VIP twice":    {MuxChange{VIPs: slices.Repeat(about, 2)}, "given twice", true},
		"another VIP":  {MuxChange{Endpoints: state.Endpoints}, "not about its VIP", true},
		"no source":    {full(1, func(e *MuxEndpoint) { e.Members[0].Outer = muxVIP6 }), "no tunnel source", false},
		"kept of none": {full(2, func(e *MuxEndpoint) { e.Ring, e.KeepRings = nil, true }), "to be kept, but none was applied", true},
		"ring id":      {full(1, func(e *MuxEndpoint) { e.Ring[3] = 9 }), "is not among the members", true},
	} {
		before := f.readable()
		if err := f.mux.Change(c.by); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, expected %q", name, err, c.want)
		}
		if after := f.readable(); after != before {
			t.Errorf("%s: refused, but the records changed: %s, then %s", name, before, after)
		}
		f.checkTables()
		must(t, tables[1].(*FakeMux).Apply(state))
		if err := tables[1].Change(c.by); c.fake && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: the fake: got %v, expected %q", name, err, c.want)
		}
	}
	f.apply(MuxState{})
	f.checkEmpty()
}

// TestChangedEqualsApplied: a fake that follows changes is where one is that was given the states.
func TestChangedEqualsApplied(t *testing.T) {
	r := seeded(t)
	var changed, applied FakeMux
	state := MuxState{RingKeys: testKeys, TunnelSources: sources}
	must(t, changed.Apply(state))
	for range 100 {
		next := randomState(r, 20)
		if r.IntN(2) == 0 {
			next.VIPs = []MuxVIP{{VIP: muxVIP4, Outbound: r.IntN(2) == 0}}
			next.Endpoints = slices.DeleteFunc(next.Endpoints, func(e MuxEndpoint) bool { return e.Key.VIP == muxVIP4 })
		}
		by, some := changeBetween(state, next)
		if !some {
			t.Fatal("states with other keys")
		}
		must(t, changed.Change(by))
		must(t, applied.Apply(next))
		got, _ := changed.State()
		want, _ := applied.State()
		for _, s := range []*MuxState{&got, &want} {
			s.Endpoints = slices.SortedFunc(slices.Values(s.Endpoints), func(a, b MuxEndpoint) int { return strings.Compare(fmt.Sprint(a.Key), fmt.Sprint(b.Key)) })
		}
		there := func(s MuxState) (out []MuxVIP) {
			for _, v := range s.VIPs {
				if v.Outbound {
					out = append(out, v)
				}
			}
			return out
		}
		if !reflect.DeepEqual(got.Endpoints, want.Endpoints) || !slices.Equal(there(got), there(want)) || !maps.Equal(changed.alive, applied.alive) {
			t.Fatalf("changed to %+v, applied %+v", got, want)
		}
		state = next
	}
}

// TestChangeLeavesOtherVIPs: limits, sources, ranges and idle times of other VIPs stay, those of a VIP that goes go.
func TestChangeLeavesOtherVIPs(t *testing.T) {
	f := newMuxFixture(t)
	one, other := ranged(muxVIP4, lb.TCP, 10, 20, "10.20.1.1"), ranged(muxVIP6, lb.TCP, 10, 20, "10.20.1.2")
	one.Idle.Trusted, other.Idle.Trusted = 1<<40, 1<<41
	deny := &SourceList{Digest: [32]byte{7}, Deny: manySources(3).Deny}
	f.apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{one, other}, VIPs: []MuxVIP{
		{VIP: muxVIP4, Limits: lb.Limits{Packets: 100}}, {VIP: muxVIP6, Sources: deny},
	}})
	idle, tables := f.mux.memory.config.Idle, f.mux.tables
	must(t, f.mux.Change(MuxChange{VIPs: []MuxVIP{{VIP: muxVIP4}}}))
	settle(t, f.mux)
	if tables.guards.byVIP[vipKey(one.Key)] != nil || tables.entries[one.Key] != nil || tables.entries[vipKey(one.Key)] != nil {
		t.Error("the VIP that went is there")
	}
	if g := tables.guards.byVIP[vipKey(other.Key)]; g == nil || g.list == nil {
		t.Errorf("the guard of the other VIP is %+v", g)
	}
	if tables.entries[vipKey(other.Key)].ranges.count != 1 || f.mux.memory.config.Idle != idle {
		t.Error("the ranges or the longest idle time of the other VIP are not as before")
	}
	must(t, f.mux.Change(MuxChange{VIPs: []MuxVIP{{VIP: muxVIP6}}}))
	if f.mux.memory.config.Idle != 0 || len(tables.idles) != 0 {
		t.Errorf("idle word %#x of %v, without endpoints", f.mux.memory.config.Idle, tables.idles)
	}
	f.checkEmpty()
}

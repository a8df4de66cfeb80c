package dataplane

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// FakeMux is the in-memory twin of *Mux: it keeps the wanted state and walks it as the program would.
type FakeMux struct {
	mu       sync.Mutex
	state    MuxState
	alive    map[MemberKey]bool
	nextHops map[netip.Addr]NextHop
	applied  int
	fail     error
	counters MuxCounters
	flows    FlowTotals

	natAddresses []NATAddress

	schedules map[lb.EndpointKey]Schedule
	scheduled map[lb.EndpointKey]Scheduled
	phases    map[lb.EndpointKey]uint32 // where cursors stand
}

var _ MuxTables = (*FakeMux)(nil)

// Apply implements MuxTables.
func (f *FakeMux) Apply(s MuxState) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	if err := checkState(s); err != nil {
		return err
	}
	if _, err := wantedKeys(s.Endpoints, s.VIPs); err != nil {
		return err
	}
	return f.obeyLocked(s)
}

// Change implements MuxTables.
func (f *FakeMux) Change(c MuxChange) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.fail != nil:
		return f.fail
	case f.applied == 0:
		return errNoState
	}
	if _, err := c.check(); err != nil {
		return err
	}
	return f.obeyLocked(f.state.Changed(c))
}

// obeyLocked makes a state the present one, with the rings that it keeps.
func (f *FakeMux) obeyLocked(s MuxState) error {
	s, err := s.WithRings(f.state)
	if err != nil {
		return err
	}
	if err := checkEndpoints(s.Endpoints); err != nil {
		return err
	}
	alive := make(map[MemberKey]bool)
	for _, e := range s.Endpoints {
		for _, m := range e.Members {
			key := MemberKey{e.Key, m.ID}
			was, known := f.alive[key]
			alive[key] = was || !known && m.Alive
		}
	}
	f.state, f.alive = s, alive
	f.applied++
	return nil
}

// SetAlive implements MuxTables.
func (f *FakeMux) SetAlive(flips []MemberAlive) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range flips {
		key := MemberKey{a.Endpoint, a.Member}
		if _, known := f.alive[key]; known {
			f.alive[key] = a.Alive
		}
	}
}

// Alive implements MuxTables.
func (f *FakeMux) Alive(e lb.EndpointKey, member uint16) (alive, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alive, known = f.alive[MemberKey{e, member}]
	return alive, known
}

// SetNextHops implements MuxTables.
func (f *FakeMux) SetNextHops(hops map[netip.Addr]NextHop) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextHops = maps.Clone(hops)
	return nil
}

// NextHops returns what was set last.
func (f *FakeMux) NextHops() map[netip.Addr]NextHop {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.nextHops)
}

// State returns what was applied last, and how often something was.
func (f *FakeMux) State() (MuxState, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.applied
}

// FailApply makes Apply fail with err until it is nil.
func (f *FakeMux) FailApply(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// SetCounters decides what Counters returns.
func (f *FakeMux) SetCounters(c MuxCounters) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counters = c
}

// Counters implements MuxTables.
func (f *FakeMux) Counters() (MuxCounters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counters, nil
}

// Trace implements MuxTables.
func (f *FakeMux) Trace(p Packet) (Trace, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return tracePacket(p, fakeView{f})
}

// Close implements MuxTables.
func (*FakeMux) Close() error { return nil }

// fakeView shows a FakeMux to tracePacket.
type fakeView struct{ f *FakeMux }

func (v fakeView) vip(vni uint32, a netip.Addr) bool {
	for _, e := range v.f.state.Endpoints {
		if e.Key.VNI == vni && e.Key.VIP == a {
			return true
		}
	}
	return slices.ContainsFunc(v.f.state.VIPs, func(w MuxVIP) bool { return w.Outbound && w.VNI == vni && w.VIP == a })
}

func (v fakeView) endpoint(k lb.EndpointKey) (endpointView, bool) {
	for _, e := range v.f.state.Endpoints {
		if e.Key != k {
			continue
		}
		view := endpointView{
			code: e.RingCode, ring: e.Ring, members: map[uint16]memberView{},
			source: e.sourceBits(), onePacket: e.OnePacket, threeTuple: e.Fragments3Tuple,
			flow: e.keepsFlows(), cookies: cookieKeysOf(e), quic: e.QUIC, nat: e.NAT, flowsFirst: e.FlowsFirst, keepDead: e.KeepDead,
		}
		if e.UseBackup && len(e.BackupRing) > 0 {
			view.code, view.ring = e.BackupCode, e.BackupRing
		}
		view.schedule = v.f.scheduleView(e)
		view.key = ring.KeyOf(v.f.state.RingKeys[e.KeySlot]).Tweaked(e.RingTweak)
		for _, m := range e.Members {
			view.count = max(view.count, int(m.ID)+1)
			view.members[m.ID] = memberView{
				outer: m.Outer, mtu: m.MTU, port: m.Port, choosable: m.Choosable, alive: v.f.alive[MemberKey{k, m.ID}],
				resolved: v.f.nextHops[m.Outer] != NextHop{},
			}
		}
		return view, true
	}
	return endpointView{}, false
}

func (v fakeView) find(p Packet) (found lb.EndpointKey, ok bool) {
	best := 0
	for _, e := range v.f.state.Endpoints {
		if rank := takes(e.Key, p); rank > best {
			best, found = rank, e.Key
		}
	}
	return found, best > 0
}

func (v fakeView) guard(vip lb.EndpointKey) (guardView, bool) {
	for _, g := range v.f.state.VIPs {
		if g.key() != vip || !g.guards() {
			continue
		}
		view := guardView{packets: g.Limits.Packets, flows: g.Limits.Connections}
		if g.Sources != nil {
			view.denied = g.Sources.denies
		}
		return view, true
	}
	return guardView{}, false
}

func (v fakeView) tunnelSources() []netip.Prefix { return v.f.state.TunnelSources }

// SetBackup implements MuxTables.
func (f *FakeMux) SetBackup(on map[lb.EndpointKey]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.state.Endpoints {
		if use, given := on[f.state.Endpoints[i].Key]; given {
			f.state.Endpoints[i].UseBackup = use
		}
	}
}

// Sweep implements MuxTables.
func (f *FakeMux) Sweep() (FlowTotals, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flows, nil
}

// SetFlows decides what Sweep returns.
func (f *FakeMux) SetFlows(t FlowTotals) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows = t
}

// Flows implements MuxTables.
func (*FakeMux) Flows(_ context.Context, of []lb.EndpointKey, _ int) ([][]Flow, error) {
	return make([][]Flow, len(of)), nil
}

// Pressure implements MuxTables.
func (*FakeMux) Pressure() []TablePressure { return nil }

// SetNATAddresses implements MuxTables.
func (f *FakeMux) SetNATAddresses(addresses []NATAddress) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := checkNATAddresses(addresses); err != nil {
		return err
	}
	f.natAddresses = slices.Clone(addresses)
	return nil
}

// NATAddresses returns what was set last.
func (f *FakeMux) NATAddresses() []NATAddress {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.natAddresses)
}

// NATUse implements MuxTables: there are no sessions.
func (*FakeMux) NATUse() (used, capacity uint64) { return 0, uint64(DefaultMuxLimits.NAT) }

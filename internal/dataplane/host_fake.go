package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// FakeHost is HostTables in memory: it checks and keeps what it is given and counts what it is told to.
type FakeHost struct {
	mu      sync.Mutex
	state   HostState
	applied int
	swept   int
	err     error
	counts  HostCounters
	asks    []BindingHandshakes
	servers HostServers
	served  int
	broken  []int
	open    map[lb.EndpointKey]map[uint16]uint64
	closed  map[lb.EndpointKey]map[uint16]uint64
	over    []Share
	pressed bool
	// capacity of the tables; nil: that of a host.
	capacity map[string]uint64
}

var _ HostTables = (*FakeHost)(nil)

// Apply implements HostTables.
func (f *FakeHost) Apply(s HostState) error {
	if _, err := wantedTables(s); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	if err := f.fits(&s); err != nil {
		return err
	}
	s.Bindings = slices.Clone(s.Bindings)
	s.TunnelSources = slices.Clone(s.TunnelSources)
	s.Repairs = slices.Clone(s.Repairs)
	s.Spreads = slices.Clone(s.Spreads)
	s.Cookies = slices.Clone(s.Cookies)
	f.state = s
	f.applied++
	return nil
}

// fits reports a lack of room by the needs of all VIPs. mu is held.
func (f *FakeHost) fits(s *HostState) error {
	if f.capacity == nil {
		return nil
	}
	byVIP, own := map[lb.EndpointKey][]plan.Binding{}, 0
	for _, b := range s.Bindings {
		byVIP[vipKey(b.Key)] = append(byVIP[vipKey(b.Key)], b)
	}
	for _, sp := range s.Spreads {
		own = len(sp.Addresses)
	}
	used, seen := map[string]uint64{}, map[fit.Need]bool{}
	for vip, bindings := range byVIP {
		cookies := slices.ContainsFunc(s.Cookies, func(k plan.CookieKeys) bool { return k.VIP == vip.VIP })
		for _, n := range HostNeeds(bindings, own, cookies) {
			if n.Of == nil || !seen[n] {
				seen[n] = n.Of != nil
				used[n.Table] += n.Units
			}
		}
	}
	for table, most := range f.capacity {
		if used[table] > most {
			return noRoom(table, "%s: %d: at most %d fit", table, used[table], most)
		}
	}
	return nil
}

// SetCapacity makes the tables as small as these; nil: as large as those of a host.
func (f *FakeHost) SetCapacity(c map[string]uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = c
}

// Capacity implements HostTables.
func (f *FakeHost) Capacity() map[string]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.capacity == nil {
		return hostCapacity()
	}
	return f.capacity
}

// Has implements HostTables.
func (f *FakeHost) Has(b *plan.Binding) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.state.Bindings, func(have plan.Binding) bool {
		return have.Key == b.Key && have.Outer == b.Outer && have.TunnelMember() == b.TunnelMember() && have.DIP == b.DIP
	})
}

// State returns the last state applied, and how many were.
func (f *FakeHost) State() (HostState, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.applied
}

// FailApply makes Apply fail with err, or work again (nil).
func (f *FakeHost) FailApply(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// SetCounters sets what Counters returns.
func (f *FakeHost) SetCounters(c HostCounters) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts = c
}

// Counters implements HostTables.
func (f *FakeHost) Counters() (HostCounters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts, nil
}

// SetHandshakes sets what Handshakes chooses from.
func (f *FakeHost) SetHandshakes(all []BindingHandshakes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asks = slices.Clone(all)
}

// Handshakes implements HostTables.
func (f *FakeHost) Handshakes(want func(*plan.Binding) bool) ([]BindingHandshakes, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	var out []BindingHandshakes
	for _, b := range f.asks {
		if want(&b.Binding) {
			out = append(out, b)
		}
	}
	return out, nil
}

// Serve implements HostTables.
func (f *FakeHost) Serve(s HostServers) (on []int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers = s
	f.served++
	for _, d := range s.Devices {
		if slices.Contains(f.broken, d) {
			err = errors.Join(err, fmt.Errorf("attach to interface %d: broken", d))
		} else {
			on = append(on, d)
		}
	}
	return on, err
}

// Servers returns what Serve was given last, and how often it was called.
func (f *FakeHost) Servers() (HostServers, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.servers, f.served
}

// BreakDevices makes devices take no program from now on; the others do.
func (f *FakeHost) BreakDevices(devices ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = devices
}

// SetConnections sets how many established flows members have; those that are not there are not known.
func (f *FakeHost) SetConnections(n map[lb.EndpointKey]map[uint16]uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = n
}

// SetClosed sets how many flows members had beside those that are established.
func (f *FakeHost) SetClosed(n map[lb.EndpointKey]map[uint16]uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = n
}

// Connections implements HostTables.
func (f *FakeHost) Connections(each func(b *plan.Binding, established, opened uint64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.state.Bindings {
		b := &f.state.Bindings[i]
		if n, known := f.open[b.Key][b.Member]; known {
			each(b, n, n+f.closed[b.Key][b.Member])
		}
	}
}

// SweepStep implements HostTables.
func (f *FakeHost) SweepStep() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.swept++
	return f.err
}

// SetShares sets what Shares returns.
func (f *FakeHost) SetShares(over []Share, pressed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over, f.pressed = over, pressed
}

// Shares implements HostTables.
func (f *FakeHost) Shares() (over []Share, pressed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.over, f.pressed
}

// Swept tells how many steps of sweeps were asked for.
func (f *FakeHost) Swept() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.swept
}

// Close implements HostTables.
func (f *FakeHost) Close() error { return nil }

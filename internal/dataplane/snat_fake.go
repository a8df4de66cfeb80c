package dataplane

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/snat"
)

// FakeMuxSNAT is MuxSNAT in memory.
type FakeMuxSNAT struct {
	mu      sync.Mutex
	members map[snat.VIP][]SNATMember
	words   map[snat.VIP]*[snat.Ranges]uint16
}

var _ MuxSNAT = (*FakeMuxSNAT)(nil)

// SetSNAT implements MuxSNAT.
func (f *FakeMuxSNAT) SetSNAT(vip snat.VIP, members []SNATMember, words *[snat.Ranges]uint16) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.words == nil {
		f.members, f.words = map[snat.VIP][]SNATMember{}, map[snat.VIP]*[snat.Ranges]uint16{}
	}
	if len(members) == 0 {
		delete(f.members, vip)
		delete(f.words, vip)
		return nil
	}
	copied := *words
	f.members[vip], f.words[vip] = slices.Clone(members), &copied
	return nil
}

// ChangeSNAT implements MuxSNAT.
func (f *FakeMuxSNAT) ChangeSNAT(vip snat.VIP, changes []SNATWord) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	words := f.words[vip]
	if words == nil {
		return fmt.Errorf("change SNAT of %s: it has none", vip.Addr)
	}
	for _, c := range changes {
		if int(c.Word) > len(f.members[vip]) {
			return fmt.Errorf("change SNAT of %s: member %d: must be at most %d", vip.Addr, c.Word, len(f.members[vip]))
		}
		words[c.Range] = c.Word
	}
	return nil
}

// DIP is who gets what is sent to a port of a VIP; false: nobody.
func (f *FakeMuxSNAT) DIP(vip snat.VIP, port uint16) (netip.Addr, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	words := f.words[vip]
	if words == nil || words[snat.RangeOf(port)] == 0 {
		return netip.Addr{}, false
	}
	return f.members[vip][words[snat.RangeOf(port)]-1].DIP, true
}

// FakeHostSNAT is HostSNAT in memory: a pool for each DIP.
type FakeHostSNAT struct {
	mu     sync.Mutex
	pools  map[snat.Holder]*snat.Pool
	ranges map[snat.Holder][]snat.Range // leaving ones too
	used   map[snat.Holder]map[snat.Range]time.Time
	low    chan snat.Holder
	now    func() time.Time
}

var _ HostSNAT = (*FakeHostSNAT)(nil)

// NewFakeHostSNAT makes one that goes by a clock.
func NewFakeHostSNAT(now func() time.Time) *FakeHostSNAT {
	return &FakeHostSNAT{
		pools: map[snat.Holder]*snat.Pool{}, ranges: map[snat.Holder][]snat.Range{}, used: map[snat.Holder]map[snat.Range]time.Time{},
		low: make(chan snat.Holder, 1024), now: now,
	}
}

// SetRanges implements HostSNAT.
func (f *FakeHostSNAT) SetRanges(h snat.Holder, usable, leaving []snat.Range) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(usable)+len(leaving) == 0 {
		delete(f.pools, h)
		delete(f.ranges, h)
		delete(f.used, h)
		return nil
	}
	if f.pools[h] == nil {
		f.pools[h], f.used[h] = snat.NewPool(uint64(len(f.pools))+1, 16), map[snat.Range]time.Time{}
	}
	f.pools[h].Use(usable)
	f.ranges[h] = append(slices.Clone(usable), leaving...)
	return nil
}

// Take gives a connection of a DIP a port.
func (f *FakeHostSNAT) Take(h snat.Holder, flow snat.Flow) (uint16, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[h]
	if p == nil {
		f.lowLocked(h)
		return 0, false
	}
	port, ok := p.Take(flow)
	if p.Low() {
		f.lowLocked(h)
	}
	if ok {
		f.used[h][snat.RangeOf(port)] = f.now()
	}
	return port, ok
}

func (f *FakeHostSNAT) lowLocked(h snat.Holder) {
	select {
	case f.low <- h:
	default:
	}
}

// Give ends a connection.
func (f *FakeHostSNAT) Give(h snat.Holder, flow snat.Flow, port uint16) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pools[h]; p != nil {
		p.Give(flow, port)
		f.used[h][snat.RangeOf(port)] = f.now()
	}
}

// Ranges are those that a DIP has.
func (f *FakeHostSNAT) Ranges(h snat.Holder) []snat.Range {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ranges[h])
}

// Low implements HostSNAT.
func (f *FakeHostSNAT) Low() <-chan snat.Holder { return f.low }

// Uses implements HostSNAT.
func (f *FakeHostSNAT) Uses() (out []SNATUse, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for h, ranges := range f.ranges {
		for _, r := range ranges {
			at := f.used[h][r]
			if f.pools[h].InUse(r) > 0 {
				at = f.now()
			}
			if !at.IsZero() {
				out = append(out, SNATUse{h, r, at})
			}
		}
	}
	return out, nil
}

// Holders are the DIPs that have ranges.
func (f *FakeHostSNAT) Holders() []snat.Holder {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.ranges))
}

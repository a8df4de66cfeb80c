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
	fails   map[snat.VIP]error
	idle    bool
	// Room is how many VIPs there may be; 0: any number. Set before the first call.
	Room int
}

var (
	_ MuxSNAT    = (*FakeMuxSNAT)(nil)
	_ SNATTeller = (*FakeMuxSNAT)(nil)
)

// SetSNAT implements MuxSNAT.
func (f *FakeMuxSNAT) SetSNAT(vip snat.VIP, members []SNATMember, words *[snat.Ranges]uint16) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails[vip]; err != nil {
		return err
	}
	if f.words == nil {
		f.members, f.words = map[snat.VIP][]SNATMember{}, map[snat.VIP]*[snat.Ranges]uint16{}
	}
	if len(members) == 0 {
		delete(f.members, vip)
		delete(f.words, vip)
		return nil
	}
	if f.words[vip] == nil && f.Room > 0 && len(f.words) >= f.Room {
		return fmt.Errorf("set SNAT of %s: no room: at most %d", vip.Addr, f.Room)
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

// HeldSNAT implements MuxSNAT.
func (f *FakeMuxSNAT) HeldSNAT() []snat.VIP {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Keys(f.words), snat.VIP.Compare)
}

// ServesSNAT implements MuxSNAT.
func (f *FakeMuxSNAT) ServesSNAT() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.idle
}

// Idle makes it that packets do not meet what is set, or do again.
func (f *FakeMuxSNAT) Idle(idle bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idle = idle
}

// Fail makes SetSNAT of a VIP fail with err, or work again (nil).
func (f *FakeMuxSNAT) Fail(vip snat.VIP, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails == nil {
		f.fails = map[snat.VIP]error{}
	}
	f.fails[vip] = err
}

// Members are a VIP's as they were set last.
func (f *FakeMuxSNAT) Members(vip snat.VIP) []SNATMember {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.members[vip])
}

// SNATWords implements SNATTeller.
func (f *FakeMuxSNAT) SNATWords(vip snat.VIP) (outers []netip.Addr, words *[snat.Ranges]uint16, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.words[vip] == nil {
		return nil, nil, false
	}
	for _, m := range f.members[vip] {
		outers = append(outers, m.Outer)
	}
	copied := *f.words[vip]
	return outers, &copied, true
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
	usable map[snat.Holder][]snat.Range
	used   map[snat.Holder]map[snat.Range]time.Time
	low    chan snat.Holder
	now    func() time.Time
	// holders are those of the last SetHolders, device that of the last SetDevice; dealt counts what Dealt said.
	holders []snat.Holder
	device  int
	dealt   map[netip.Addr]int
	settled map[netip.Addr]int // by the last Settle
	late    []SNATUse
}

var _ HostSNAT = (*FakeHostSNAT)(nil)

// NewFakeHostSNAT makes one that goes by a clock.
func NewFakeHostSNAT(now func() time.Time) *FakeHostSNAT {
	return &FakeHostSNAT{
		pools: map[snat.Holder]*snat.Pool{}, ranges: map[snat.Holder][]snat.Range{}, usable: map[snat.Holder][]snat.Range{}, used: map[snat.Holder]map[snat.Range]time.Time{},
		low: make(chan snat.Holder, 1024), now: now,
	}
}

// SetHolders implements HostSNAT.
func (f *FakeHostSNAT) SetHolders(holders []snat.Holder) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holders = slices.Clone(holders)
	for h := range f.ranges {
		if !slices.Contains(holders, h) {
			delete(f.pools, h)
			delete(f.ranges, h)
			delete(f.used, h)
		}
	}
	return nil
}

// Told are the DIPs of the last SetHolders.
func (f *FakeHostSNAT) Told() []snat.Holder {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.holders)
}

// SetDevice implements HostSNAT.
func (f *FakeHostSNAT) SetDevice(index int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.device = index
}

// Device is that of the last SetDevice.
func (f *FakeHostSNAT) Device() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.device
}

// Dealt implements HostSNAT.
func (f *FakeHostSNAT) Dealt(dip netip.Addr, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dealt == nil {
		f.dealt = map[netip.Addr]int{}
	}
	f.dealt[dip] += n
}

// DealtOf is what Dealt said of a DIP altogether.
func (f *FakeHostSNAT) DealtOf(dip netip.Addr) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dealt[dip]
}

// Use says that a connection took a port of a range now, whether the DIP has it or not: one that was about to when the range went.
func (f *FakeHostSNAT) Use(h snat.Holder, r snat.Range) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late = append(f.late, SNATUse{h, r, f.now()})
}

// Settle implements HostSNAT.
func (f *FakeHostSNAT) Settle(waiting func(netip.Addr) (int, bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled = map[netip.Addr]int{}
	for _, h := range f.holders {
		if n, ok := waiting(h.DIP); ok {
			f.settled[h.DIP] = n
		}
	}
}

// Settled is what the last Settle was told of a DIP; false: nothing.
func (f *FakeHostSNAT) Settled(dip netip.Addr) (n int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok = f.settled[dip]
	return n, ok
}

// SetRanges implements HostSNAT.
func (f *FakeHostSNAT) SetRanges(h snat.Holder, usable, leaving []snat.Range) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(usable)+len(leaving) == 0 {
		delete(f.pools, h)
		delete(f.ranges, h)
		delete(f.usable, h)
		delete(f.used, h)
		return nil
	}
	if f.pools[h] == nil {
		f.pools[h], f.used[h] = snat.NewPool(uint64(len(f.pools))+1, 16), map[snat.Range]time.Time{}
	}
	f.pools[h].Use(usable)
	f.ranges[h] = append(slices.Clone(usable), leaving...)
	f.usable[h] = slices.Clone(usable)
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

// Usable are those whose ports new connections of a DIP take.
func (f *FakeHostSNAT) Usable(h snat.Holder) []snat.Range {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.usable[h])
}

// Low implements HostSNAT.
func (f *FakeHostSNAT) Low() <-chan snat.Holder { return f.low }

// Uses implements HostSNAT.
func (f *FakeHostSNAT) Uses() (out []SNATUse, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out = append(out, f.late...)
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

package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// HostRepair is what the host needs to find former owners of an endpoint's flows. It is never modified: one that is the same pointer in
// two states is the same in the tables.
type HostRepair struct {
	Key lb.EndpointKey
	// Hash is the ring hash key.
	Hash [16]byte
	// Client, when not nil, is what makes a flow in the place of addresses and ports; ThreeTuple: addresses and protocol do.
	Client     *lb.SourceAffinity
	ThreeTuple bool
	// Source is this host's own address that packets are sent on from. Targets of another family are not used.
	Source netip.Addr
	// Turns are the slots, Targets those whose ids are in them.
	Turns   ring.Folded
	Targets []HostTarget
	// Peers are the hosts that may send packets on to this one.
	Peers []netip.Addr
	// spread, if not nil, is what the record is made of instead: of packets from switches.
	spread *HostSpread
}

// name is what the record is found by.
func (r *HostRepair) name() repairName { return repairName{r.Key, r.spread != nil} }

// HostTarget is who a flow may belong to.
type HostTarget struct {
	ID    uint16
	Outer netip.Addr
	// Here: its host is this one.
	Here bool
	// named is what packets from switches name the member by, once it is chosen.
	named uint16
}

// repairTables are the parts of the host's tables that say who had flows before. Endpoints are immutable records: a change fills free
// ones and bindings name them. A record that no binding names any more is free after a grace period, for which no change waits unless
// the tables have no room.
type repairTables struct {
	mem     muxMemory
	records []hostRepair
	slots   []uint32
	targets []hostRepairTarget
	grace   *grace
	// deferred frees records. Its lock is that of the tables.
	deferred *deferredFree

	taken       []bool // records
	slotSpace   *buddy
	targetSpace *buddy
	placed      map[repairName]*placedRepair
	// left are those that bindings name no more, and at the start those that bindings of the pins name.
	left []*placedRepair
	// crowded is how many endpoints the tables have no room for.
	crowded int
}

// placedRepair is an endpoint's place in the tables.
type placedRepair struct {
	of             *HostRepair
	index          uint32
	slots, targets block
}

// openRepairs maps the tables and takes what the bindings name as used.
func openRepairs(o *hostObjects, d *deferredFree) (*repairTables, error) {
	t := &repairTables{placed: map[repairName]*placedRepair{}, deferred: d}
	err := mapTable(&t.mem, o.Repairs, &t.records)
	if err == nil {
		var words []uint64
		if err = mapTable(&t.mem, o.RepairSlots, &words); err == nil {
			t.slots = unsafe.Slice((*uint32)(unsafe.Pointer(&words[0])), 2*len(words)) // little endian, as bpf2go makes it
		}
	}
	if err == nil {
		err = mapTable(&t.mem, o.RepairTargets, &t.targets)
	}
	if err == nil {
		t.grace, err = newGrace()
	}
	if err != nil {
		t.mem.close()
		return nil, err
	}
	d.wait = t.grace.wait
	t.taken = make([]bool, len(t.records))
	t.slotSpace = newBuddy(uint32(len(t.slots)), 1<<ring.CodeMin)
	t.targetSpace = newBuddy(uint32(len(t.targets)), 8)
	return t, nil
}

func (t *repairTables) close() {
	t.grace.close()
	t.mem.close()
}

// adopt takes a record that bindings of the pins name as used until the first Apply.
func (t *repairTables) adopt(number uint32) error {
	if number == 0 || number > uint32(len(t.taken)) || t.taken[number-1] {
		return nil
	}
	r := &t.records[number-1]
	p := &placedRepair{index: number - 1}
	var ok, also bool
	p.slots, ok = t.slotSpace.reserve(r.Slots, 1<<r.Code)
	p.targets, also = t.targetSpace.reserve(r.Targets, r.Count)
	if !ok || !also {
		return fmt.Errorf("repair record %d: its slots or targets are another's too", number-1)
	}
	t.taken[number-1] = true
	t.left = append(t.left, p)
	return nil
}

// place gives an endpoint a record. Without room it waits for the entries that are being freed; it returns false if these are too few.
func (t *repairTables) place(r *HostRepair) (*placedRepair, bool) {
	if p, ok := t.tryPlace(r); ok || t.deferred.flushLocked() != nil {
		return p, ok
	}
	return t.tryPlace(r)
}

// tryPlace gives an endpoint a record, or returns false if there is no room.
func (t *repairTables) tryPlace(r *HostRepair) (*placedRepair, bool) {
	count := uint32(1)
	for _, to := range r.Targets {
		count = max(count, uint32(to.ID)+1)
	}
	index := slices.Index(t.taken, false)
	if index < 0 {
		return nil, false
	}
	p := &placedRepair{of: r, index: uint32(index)}
	var ok bool
	if p.slots, ok = t.slotSpace.alloc(uint32(len(r.Turns.Slots))); !ok {
		return nil, false
	}
	if p.targets, ok = t.targetSpace.alloc(count); !ok {
		t.slotSpace.free(p.slots)
		return nil, false
	}
	t.taken[index] = true
	t.write(p, count)
	return p, true
}

// write fills a record that nobody reads.
func (t *repairTables) write(p *placedRepair, count uint32) {
	r := p.of
	for i, turns := range r.Turns.Slots {
		t.slots[p.slots.first+uint32(i)] = uint32(turns)
	}
	clear(t.targets[p.targets.first : p.targets.first+p.targets.words])
	for _, to := range r.Targets {
		w := hostRepairTarget{OuterDst: to.Outer.As16(), Member: uint32(to.named)}
		switch {
		case to.Here:
			w.Use = uint32(hostRepairUseREPAIR_HERE)
		case to.Outer.Is4() == r.Source.Is4():
			w.Use = uint32(hostRepairUseREPAIR_AWAY)
		}
		t.targets[p.targets.first+uint32(to.ID)] = w
	}
	w := hostRepair{
		Key: [2]uint64{binary.LittleEndian.Uint64(r.Hash[:8]), binary.LittleEndian.Uint64(r.Hash[8:])}, Source: r.Source.As16(),
		Slots: p.slots.first, Targets: p.targets.first, Count: count, Code: r.Turns.Code, Port: r.Key.Port,
	}
	switch {
	case r.Client != nil:
		bits := int(r.Client.Prefix6)
		if r.Key.VIP.Is4() {
			bits = 96 + int(r.Client.Prefix4)
		}
		mask := make([]byte, 16)
		copy(mask, prefixMask(netip.PrefixFrom(netip.IPv6Unspecified(), bits)))
		w.Mask = [2]uint64{binary.NativeEndian.Uint64(mask[:8]), binary.NativeEndian.Uint64(mask[8:])}
		w.Flow = uint8(hostRepairFlowREPAIR_CLIENT)
	case r.ThreeTuple:
		w.Flow = uint8(hostRepairFlowREPAIR_3TUPLE)
	}
	t.records[p.index] = w
}

// follow makes the tables have the wanted endpoints beside those that are there, and returns the numbers that bindings name them by. What
// is not wanted any more is left until release.
func (t *repairTables) follow(want []*HostRepair) map[repairName]uint32 {
	numbers := make(map[repairName]uint32, len(want))
	placed := make(map[repairName]*placedRepair, len(want))
	t.crowded = 0
	for _, r := range want {
		p := t.placed[r.name()]
		if p == nil || p.of != r {
			var ok bool
			if p, ok = t.place(r); !ok {
				t.crowded++
				continue
			}
		}
		placed[r.name()], numbers[r.name()] = p, p.index+1
	}
	for key, p := range t.placed {
		if placed[key] != p {
			t.left = append(t.left, p)
		}
	}
	t.placed = placed
	return numbers
}

// release has the records freed that bindings do not name any more, once no program reads them.
func (t *repairTables) release() {
	if len(t.left) == 0 {
		return
	}
	left := t.left
	t.left = nil
	t.deferred.deferLocked(func() {
		for _, p := range left {
			t.taken[p.index] = false
			t.slotSpace.free(p.slots)
			t.targetSpace.free(p.targets)
		}
	})
}

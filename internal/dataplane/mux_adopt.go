package dataplane

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// adopt learns from the tables what another process put there. Nothing is changed that a reader could see, but for
// tombstones that nobody passes. The caller has waited for a grace period since that process ended.
func (t *muxTables) adopt() error {
	t.hops.adoptDevices()
	found, err := t.slots.adopt()
	if err != nil {
		return fmt.Errorf("adopt tables: %w", err)
	}
	for i := range t.dirtyEndpoints {
		t.dirtyEndpoints[i] = true
	}
	for i := range t.dirtyMembers {
		t.dirtyMembers[i] = true
	}
	for key, ref := range found {
		if err := t.adoptEntry(key, ref); err != nil {
			return fmt.Errorf("adopt tables: endpoint %v: %w", key, err)
		}
	}
	for index, b := range t.byIndex {
		if hop := t.hops.hop(t.mem.backends[index].Nexthop); hop != (NextHop{}) {
			t.hops.wanted[b.outer] = hop
		}
	}
	return nil
}

func (t *muxTables) adoptEntry(key lb.EndpointKey, ref slotRef) error {
	if !t.endpoints.reserve(ref.endpoint) {
		return fmt.Errorf("record %d: beyond the table or in use twice", ref.endpoint)
	}
	record := &t.mem.endpoints[ref.endpoint]
	e := &muxEntry{slot: ref.slot, index: ref.endpoint, members: map[uint16]*backendRef{}}
	t.entries[key] = e
	if record.Ring != 0 {
		e.code, e.keySlot = uint8(record.Ring>>32), uint8(record.Ring>>40)
		if e.code < uint8(muxLimitLIMIT_RING_CODE_MIN) || e.code > uint8(muxLimitLIMIT_RING_CODE_MAX) {
			return fmt.Errorf("ring word %#x: size code %d", record.Ring, e.code)
		}
		var ok bool
		if e.ring, ok = t.rings.reserve(uint32(record.Ring), 1<<e.code/slotsPerWord); !ok {
			return fmt.Errorf("ring word %#x: words in use twice", record.Ring)
		}
	}
	e.count = int(record.Members >> 32)
	if e.count == 0 {
		return nil
	}
	if e.count > math.MaxUint16+1 {
		return fmt.Errorf("members word %#x: too many", record.Members)
	}
	var ok bool
	if e.block, ok = t.members.reserve(uint32(record.Members), uint32(e.count)); !ok {
		return fmt.Errorf("members word %#x: words in use twice", record.Members)
	}
	return t.adoptMembers(e)
}

func (t *muxTables) adoptMembers(e *muxEntry) error {
	for id := range e.count {
		word := *t.word(e, uint16(id))
		if word&memberPresent == 0 {
			continue
		}
		index := uint32(word)
		b, ok := t.byIndex[index]
		if !ok {
			if !t.backends.reserve(index) {
				return fmt.Errorf("member %d: backend %d beyond the table", id, index)
			}
			record := &t.mem.backends[index]
			b = &backendRef{backendKey: backendKey{netip.AddrFrom16(record.OuterDst).Unmap(), record.Mtu}, index: index}
			if b.mtu == math.MaxUint32 {
				b.mtu = 0
			}
			t.byIndex[index], t.byOuter[b.backendKey] = b, b
		}
		b.refs++
		e.members[uint16(id)] = b
	}
	return nil
}

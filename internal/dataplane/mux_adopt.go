package dataplane

import (
	"fmt"
	"math"

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
	for key, ref := range found {
		if err := t.adoptEntry(key, ref); err != nil {
			return fmt.Errorf("adopt tables: endpoint %v: %w", key, err)
		}
	}
	for index, b := range t.records.byIndex {
		if b == nil {
			continue
		}
		if hop := t.hops.hop(t.mem.backends[index].Nexthop); hop != (NextHop{}) {
			t.hops.wanted[b.outer] = hop
		}
	}
	// Flows may name words that the last owner gave up.
	t.sweepNow()
	return nil
}

func (t *muxTables) adoptEntry(key lb.EndpointKey, ref slotRef) error {
	if !t.endpoints.reserve(ref.endpoint) {
		return fmt.Errorf("counter %d: beyond the table or in use twice", ref.endpoint)
	}
	record := &t.mem.slots[ref.slot]
	e := &muxEntry{slot: ref.slot, index: ref.endpoint, policy: record.Policy}
	t.entries[key] = e
	if err := t.quic.adopt(e); err != nil {
		return err
	}
	if e.extra = uint32(record.Extra); e.extra != 0 && !t.extras.reserve(e.extra-1) {
		return fmt.Errorf("record %d: beyond the table or in use twice", e.extra-1)
	}
	if e.extra != 0 && t.mem.extras[e.extra-1].Guard != 0 {
		if err := t.guards.adopt(vipKey(key), t.mem.extras[e.extra-1].Guard-1); err != nil {
			return err
		}
	}
	if err := t.adoptSequence(e); err != nil {
		return err
	}
	if err := t.adoptCookies(e); err != nil {
		return err
	}
	if key.Protocol == 0 {
		if err := t.adoptRanges(e, record); err != nil {
			return err
		}
		return t.adoptSNAT(key, e, record)
	}
	if record.Ring != 0 {
		code := uint8(record.Ring >> 32)
		if code < uint8(muxLimitLIMIT_RING_CODE_MIN) || code > uint8(muxLimitLIMIT_RING_CODE_MAX) {
			return fmt.Errorf("ring word %#x: size code %d", record.Ring, code)
		}
		b, ok := t.rings.reserve(uint32(record.Ring), 1<<code/slotsPerWord)
		if !ok {
			return fmt.Errorf("ring word %#x: words in use twice", record.Ring)
		}
		e.rings[0], e.hashKey, e.adopted = ringRef{b, code}, uint16(record.Ring>>muxRingWordBitRING_WORD_KEY_SHIFT), true
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
	t.own(e.block, e)
	if e.flags()&muxEndpointFlagENDPOINT_MOVED != 0 && e.extra != 0 {
		before := t.mem.extras[e.extra-1].MembersBefore
		if uint32(before) == e.block.first {
			// The last owner was about to move them, and did not.
		} else if e.moved, ok = t.members.reserve(uint32(before), uint32(before>>32)); !ok {
			return fmt.Errorf("members word %#x: words in use twice", before)
		}
		t.own(e.moved, e)
		e.ripe = true
	}
	return t.adoptMembers(e)
}

func (t *muxTables) adoptMembers(e *muxEntry) error {
	for id := range e.count {
		word := *t.word(e, uint16(id))
		if word&memberPresent == 0 {
			continue
		}
		b, err := t.adoptBackend(uint32(word))
		if err != nil {
			return fmt.Errorf("member %d: %w", id, err)
		}
		e.members.set(uint16(id), b)
	}
	return nil
}

// adoptBackend learns a backend record and takes a reference.
func (t *muxTables) adoptBackend(index uint32) (*backendRef, error) {
	if int(index) >= len(t.records.byIndex) {
		return nil, fmt.Errorf("backend %d beyond the table", index)
	}
	b := t.records.byIndex[index]
	if b == nil {
		if !t.backends.reserve(index) {
			return nil, fmt.Errorf("backend %d beyond the table", index)
		}
		b = &backendRef{backendKey: backendKeyOf(&t.mem.backends[index]), index: index}
		t.records.put(b)
	}
	b.refs++
	return b, nil
}

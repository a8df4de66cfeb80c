package dataplane

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// slotTable fills the exact-match endpoint table (bpf/lib/endpoint.h). A key with protocol and port 0 is that of a VIP.
type slotTable struct {
	mem   []muxEndpointSlot
	state []slotState
	// passed counts, by slot, the keys in use whose probe sequence passes over it. A tombstone that nobody passes can
	// be an empty slot again.
	passed []uint16
}

type slotState uint8

const (
	slotFree  slotState = iota
	slotUsed            // from place to release
	slotGrace           // withdrawn; readers may still hold its value
)

func newSlotTable(mem []muxEndpointSlot) *slotTable {
	return &slotTable{mem: mem, state: make([]slotState, len(mem)), passed: make([]uint16, len(mem))}
}

// endpointHash is endpoint_hash of bpf/lib/hash.h.
func endpointHash(vip [16]byte, key uint64) uint64 {
	hi, lo := binary.LittleEndian.Uint64(vip[:8]), binary.LittleEndian.Uint64(vip[8:])
	x := (lo + key*0x9e3779b97f4a7c15) ^ hi*0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>29
}

// endpointKeyWord is endpoint_key of bpf/lib/endpoint.h, with the end of a range of ports in its lowest bits.
func endpointKeyWord(k lb.EndpointKey) uint64 {
	return uint64(k.VNI)<<40 | uint64(k.Protocol)<<32 | uint64(k.Port)<<16 | uint64(k.PortEnd)
}

// endpointKeyOf is the inverse of endpointKeyWord and As16.
func endpointKeyOf(vip [16]byte, word uint64) lb.EndpointKey {
	return lb.EndpointKey{
		VNI: uint32(word >> 40), VIP: netip.AddrFrom16(vip).Unmap(),
		Protocol: lb.Protocol(word >> 32), Port: uint16(word >> 16), PortEnd: uint16(word),
	}
}

// probes is the probe sequence of a key.
func (t *slotTable) probes(k lb.EndpointKey) iter.Seq[uint32] {
	hash := endpointHash(k.VIP.As16(), endpointKeyWord(k))
	slot, step, mask := uint32(hash>>32), uint32(hash)|1, uint32(len(t.mem)-1)
	return func(yield func(uint32) bool) {
		for range uint32(muxLimitLIMIT_ENDPOINT_PROBES) {
			if !yield(slot & mask) {
				return
			}
			slot += step
		}
	}
}

// place finds and writes a slot for a key that is not in the table. Readers do not see it before publish.
func (t *slotTable) place(k lb.EndpointKey) (uint32, error) {
	for slot := range t.probes(k) {
		if t.state[slot] != slotFree {
			continue
		}
		t.take(k, slot)
		value := t.mem[slot].Value // readers end or go on here until it is published
		t.mem[slot] = muxEndpointSlot{Vip: k.VIP.As16(), Key: endpointKeyWord(k), Value: value}
		return slot, nil
	}
	return 0, noRoom(TableEndpoints, "endpoint table: no slot left for %v: it has %d slots (--max-endpoints)", k, len(t.mem))
}

// take marks a key's slot and what lies before it.
func (t *slotTable) take(k lb.EndpointKey, slot uint32) {
	t.state[slot] = slotUsed
	for s := range t.probes(k) {
		if s == slot {
			return
		}
		t.passed[s]++
	}
}

// publish lets readers find the slot.
func (t *slotTable) publish(slot, endpoint uint32) {
	store(&t.mem[slot].Value, uint64(endpoint)+uint64(muxEndpointSlotValueENDPOINT_SLOT_FIRST))
}

// withdraw hides the slot of a key from readers. It must be released after a grace period; until then it stays a
// tombstone, so that keys placed behind it are found.
func (t *slotTable) withdraw(k lb.EndpointKey, slot uint32) {
	store(&t.mem[slot].Value, uint64(muxEndpointSlotValueENDPOINT_SLOT_TOMBSTONE))
	t.state[slot] = slotGrace
	t.unpass(k, slot)
}

// unplace takes back a place that was never published.
func (t *slotTable) unplace(k lb.EndpointKey, slot uint32) {
	t.unpass(k, slot)
	t.release(slot)
}

// release makes a withdrawn slot free once no reader can hold its value.
func (t *slotTable) release(slot uint32) {
	t.state[slot] = slotFree
	t.empty(slot)
}

// unpass undoes what take counted.
func (t *slotTable) unpass(k lb.EndpointKey, slot uint32) {
	for s := range t.probes(k) {
		if s == slot {
			return
		}
		t.passed[s]--
		t.empty(s)
	}
}

// empty turns a free tombstone that no key passes into an empty slot, where lookups may end. Keys are never placed
// behind a free slot, so none can be hidden.
func (t *slotTable) empty(slot uint32) {
	tombstone := t.mem[slot].Value == uint64(muxEndpointSlotValueENDPOINT_SLOT_TOMBSTONE)
	if tombstone && t.state[slot] == slotFree && t.passed[slot] == 0 {
		store(&t.mem[slot].Value, uint64(muxEndpointSlotValueENDPOINT_SLOT_EMPTY))
	}
}

// adopt takes over what the table holds and returns the endpoint index of every key.
func (t *slotTable) adopt() (map[lb.EndpointKey]slotRef, error) {
	found := make(map[lb.EndpointKey]slotRef)
	for i := range t.mem {
		value := t.mem[i].Value
		if value < uint64(muxEndpointSlotValueENDPOINT_SLOT_FIRST) {
			continue
		}
		k := endpointKeyOf(t.mem[i].Vip, t.mem[i].Key)
		if was, twice := found[k]; twice {
			return nil, fmt.Errorf("endpoint table: %v is in slots %d and %d", k, was.slot, i)
		}
		t.take(k, uint32(i))
		found[k] = slotRef{uint32(i), uint32(value - uint64(muxEndpointSlotValueENDPOINT_SLOT_FIRST))}
	}
	for i := range t.mem {
		t.empty(uint32(i))
	}
	return found, nil
}

// slotRef is where a key is, and which endpoint record it names.
type slotRef struct{ slot, endpoint uint32 }

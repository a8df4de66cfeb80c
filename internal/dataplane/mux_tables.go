package dataplane

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// muxTables is what the mux's tables hold, and who owns which part of them. Everything in it can be rebuilt from the
// tables themselves (adopt).
type muxTables struct {
	mem  *muxMemory
	maps *muxMaps

	slots     *slotTable
	endpoints *pool
	rings     *buddy
	members   *buddy
	backends  *pool

	entries map[lb.EndpointKey]*muxEntry
	byOuter map[backendKey]*backendRef
	byIndex map[uint32]*backendRef
	hops    hopTable

	// Counters that may not be zero, by index: they are cleared when the index is used again.
	dirtyEndpoints, dirtyMembers []bool
}

// muxEntry is an endpoint in the tables, or a VIP as such (protocol and port 0: no ring, no members).
type muxEntry struct {
	slot, index uint32
	ring        block
	code        uint8
	keySlot     uint8
	block       block // of member words
	count       int   // member words in use
	members     map[uint16]*backendRef
}

// backendKey is what a backend record is made of.
type backendKey struct {
	outer netip.Addr
	mtu   uint32
}

// backendRef is a backend record; members of many endpoints may share it.
type backendRef struct {
	backendKey
	index uint32
	refs  int
}

// Blocks are never smaller than this, in words.
const (
	ringBlockMin   = 1 << muxLimitLIMIT_RING_CODE_MIN / slotsPerWord
	memberBlockMin = 4
	slotsPerWord   = 4
)

// Bits of member words.
const (
	memberAlive     = uint64(1) << muxMemberBitMEMBER_ALIVE_SHIFT
	memberChoosable = uint64(1) << muxMemberBitMEMBER_CHOOSABLE_SHIFT
	memberPresent   = uint64(1) << muxMemberBitMEMBER_PRESENT_SHIFT
)

func newMuxTables(mem *muxMemory, maps *muxMaps) *muxTables {
	t := &muxTables{
		mem: mem, maps: maps,
		slots:     newSlotTable(mem.slots),
		endpoints: newPool(uint32(len(mem.endpoints))),
		rings:     newBuddy(uint32(len(mem.rings)), ringBlockMin),
		members:   newBuddy(uint32(len(mem.members)), memberBlockMin),
		backends:  newPool(uint32(len(mem.backends))),
		entries:   make(map[lb.EndpointKey]*muxEntry),
		byOuter:   make(map[backendKey]*backendRef),
		byIndex:   make(map[uint32]*backendRef),

		dirtyEndpoints: make([]bool, len(mem.endpoints)),
		dirtyMembers:   make([]bool, len(mem.members)),
	}
	t.hops = newHopTable(mem)
	return t
}

// memberWord is the word of a member (enum member_bit).
func memberWord(backend uint32, choosable, alive bool) uint64 {
	w := uint64(backend) | memberPresent
	if choosable {
		w |= memberChoosable
	}
	if alive {
		w |= memberAlive
	}
	return w
}

// word is the address of a member's word.
func (t *muxTables) word(e *muxEntry, id uint16) *uint64 {
	return &t.mem.members[e.block.first+uint32(id)]
}

// packRing writes member ids into ring words, four to a word, the first in the lowest bits.
func packRing(words []uint64, ring []uint16) {
	for i := range words {
		r := ring[i*slotsPerWord:]
		words[i] = uint64(r[0]) | uint64(r[1])<<16 | uint64(r[2])<<32 | uint64(r[3])<<48
	}
}

// ringEqual compares member ids with ring words.
func ringEqual(words []uint64, ring []uint16) bool {
	if len(words)*slotsPerWord != len(ring) {
		return false
	}
	for i, w := range words {
		r := ring[i*slotsPerWord:]
		if w != uint64(r[0])|uint64(r[1])<<16|uint64(r[2])<<32|uint64(r[3])<<48 {
			return false
		}
	}
	return true
}

// unpackRing is the inverse of packRing.
func unpackRing(words []uint64) []uint16 {
	ring := make([]uint16, 0, len(words)*slotsPerWord)
	for _, w := range words {
		ring = append(ring, uint16(w), uint16(w>>16), uint16(w>>32), uint16(w>>48))
	}
	return ring
}

// ringWord and membersWord are the atomic words of an endpoint record.
func ringWord(b block, code, keySlot uint8) uint64 {
	if b.words == 0 {
		return 0
	}
	return uint64(b.first) | uint64(code)<<32 | uint64(keySlot)<<40
}

func membersWord(b block, count int) uint64 { return uint64(b.first) | uint64(count)<<32 }

// clearCounter zeroes element i of a per-CPU counter array when it may have counted for somebody else.
func clearCounter(m *ebpf.Map, dirty []bool, i uint32) error {
	if dirty[i] {
		if err := m.Update(i, make([]muxCounter, ebpf.MustPossibleCPU()), ebpf.UpdateAny); err != nil {
			return fmt.Errorf("clear counter %d of %s: %w", i, m, err)
		}
	}
	dirty[i] = true
	return nil
}

// copyCounters lets the counters of a block go on in another.
func (t *muxTables) copyCounters(from, to block, count int) error {
	for i := range uint32(count) {
		var values []muxCounter
		if err := t.maps.MemberCounts.Lookup(from.first+i, &values); err != nil {
			return fmt.Errorf("read counter of member word %d: %w", from.first+i, err)
		}
		if err := t.maps.MemberCounts.Update(to.first+i, values, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("write counter of member word %d: %w", to.first+i, err)
		}
		t.dirtyMembers[to.first+i] = true
	}
	return nil
}

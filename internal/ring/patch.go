package ring

import "slices"

// Patch returns the ring to use while members are down: a slot of a down member gets the member
// that Choose returns if exactly the down ones are not usable; every other slot keeps its member.
// So only slots of down members change, and packets go to the same members as by the fallback chain
// before the patch.
//
// ring must be the one that Build returned for all members with weight, not a patched one, so that
// the result does not depend on the order in which members went down. down must be true for every
// id below count that may get no packets: members that are down, members without weight, ids
// without a member. If all are down, Patch returns the ring unchanged. It does not modify ring, and
// returns it if no slot changes.
func Patch(ring []uint16, code uint8, count int, down func(id uint16) bool) []uint16 {
	gone := make([]uint8, count+1) // 1: down; the last one is for ids from count on
	left := false
	for id := range count {
		if down(uint16(id)) {
			gone[id] = 1
		} else {
			left = true
		}
	}
	if gone[count] = 1; !left {
		return ring
	}
	out := ring
	for first := 0; first < len(ring); first += patchPart {
		// The slots to change are unpredictable, so they are listed without a branch.
		var list [patchPart]uint32
		n := 0
		for i, id := range ring[first:min(first+patchPart, len(ring))] {
			list[n%patchPart] = uint32(first + i)
			n += int(gone[min(int(id), count)])
		}
		if n > 0 && &out[0] == &ring[0] {
			out = slices.Clone(ring)
		}
		for _, slot := range list[:n] {
			out[slot] = patched(ring, code, gone[:count], slot)
		}
	}
	return out
}

// patchPart is the number of slots that are scanned before the changes to them are made.
const patchPart = 256

// patched returns the member that Choose finds for a slot whose own is down; some member must be
// left. It is a separate implementation, because a change of many endpoints calls it a million
// times.
func patched(ring []uint16, code uint8, gone []uint8, slot uint32) uint16 {
	for probe := 1; probe <= FallbackProbes; probe++ {
		if id := ring[Fallback(slot, code, probe)]; int(id) < len(gone) && gone[id] == 0 {
			return id
		}
	}
	start := int(ScanStart(slot, len(gone)))
	for i := range gone {
		if id := (start + i) % len(gone); gone[id] == 0 {
			return uint16(id)
		}
	}
	panic("ring: patch of a ring that nobody is left of")
}

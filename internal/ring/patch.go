package ring

import "slices"

// Patch is the ring that is walked while members are down: a slot of a down member gets what Choose gives for it when
// exactly the down ones are not usable, every other slot keeps its member. So nothing moves that need not, and a packet
// goes where the fallback chain took it before the patch.
//
// ring is always the one that Build made of all members with weight, never a patched one: the result then depends on who
// is down and not on the order in which they went down. down must be true for every id below count that no packet may
// be sent to: members that are down, members without weight, ids that no member has. When all are down the ring is as it
// was. ring itself is not changed; it is returned when no slot has to change.
func Patch(ring []uint16, code uint8, count int, down func(id uint16) bool) []uint16 {
	gone := make([]uint8, count+1) // 1: gone; the last one stands for ids from count on
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
		// Nobody could predict whose slots come: they are listed without a branch.
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

// patchPart is the number of slots that are looked at before those of them that change are changed.
const patchPart = 256

// patched is the member that Choose finds for a slot whose own is gone, when somebody is left: written out, because a change
// of many endpoints asks for it a million times.
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

package ring

// Slot returns the slot of a flow hash in a ring of 1<<code slots.
func Slot(hash uint64, code uint8) uint32 {
	return uint32(hash >> (64 - code))
}

// Fallback returns the slot tried as number probe (1 to FallbackProbes) after slot, if the member
// there is not usable. It depends only on the slot, so that all nodes agree and flows of one slot
// stay together.
func Fallback(slot uint32, code uint8, probe int) uint32 {
	return Slot(mix64(uint64(probe)<<32|uint64(slot)), code)
}

// ScanStart returns the member id at which the scan begins if the whole chain is dead.
func ScanStart(slot uint32, count int) uint32 {
	return uint32(mix64(uint64(FallbackProbes+1)<<32|uint64(slot)) >> 32 * uint64(count) >> 32)
}

// Choice is the result of a walk.
type Choice struct {
	Member uint16
	// Slot is the flow's own slot.
	Slot uint32
	// Probes is where the member was found: 0 in the slot itself, 1 to FallbackProbes in the chain,
	// FallbackProbes+1 by the scan.
	Probes int
}

// Choose returns the member of a flow, as the mux program selects it: the slot's, else the first
// usable one in the fallback chain, else the first usable one in id order from ScanStart on. ring
// has 1<<code ids, all below count. False if no member is usable.
func Choose(ring []uint16, code uint8, count int, hash uint64, usable func(id uint16) bool) (Choice, bool) {
	c := Choice{Slot: Slot(hash, code)}
	try := func(id uint16) bool {
		c.Member = id
		return int(id) < count && usable(id)
	}
	if try(ring[c.Slot]) {
		return c, true
	}
	for c.Probes = 1; c.Probes <= FallbackProbes; c.Probes++ {
		if try(ring[Fallback(c.Slot, code, c.Probes)]) {
			return c, true
		}
	}
	start := int(ScanStart(c.Slot, count))
	for i := range count {
		if try(uint16((start + i) % count)) {
			return c, true
		}
	}
	return Choice{Slot: c.Slot}, false
}

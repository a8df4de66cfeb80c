package ring

import "slices"

// Seat is a member with the flags that exclude it from a ring.
type Seat struct {
	Member
	// Backup: not in the ring that is used while enough others are healthy.
	Backup bool
	// Down: its slots are those of the fallback chain (Patch).
	Down bool
}

// Walked returns the ring that muxes use while no backup is active: built of all members except
// backups, then patched for those that are down. It is nil if none of them has weight.
func (b *Builder) Walked(code uint8, seats []Seat) []uint16 {
	members := make([]Member, 0, len(seats))
	count, down := 0, false
	for _, s := range seats {
		count = max(count, int(s.ID)+1)
		down = down || s.Down
		if !s.Backup {
			members = append(members, s.Member)
		}
	}
	whole := b.Build(code, members)
	if len(whole) == 0 || !down {
		return whole
	}
	usable := make([]bool, count)
	for _, s := range seats {
		usable[s.ID] = !s.Down && !s.Backup && s.Weight > 0
	}
	if !slices.Contains(usable, true) {
		return whole
	}
	return Patch(whole, code, count, func(id uint16) bool { return !usable[id] })
}

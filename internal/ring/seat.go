package ring

import "slices"

// Seat is a member and what makes a ring leave it out.
type Seat struct {
	Member
	// Backup: not in the ring that is used while the others are well.
	Backup bool
	// Down: its slots are those of the fallback chain (Patch).
	Down bool
}

// Walked is the ring that muxes walk as long as no backup takes part: made of all members but the backups, then patched for those
// that are down. It is nil when none of them has weight.
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

package ring

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawSparse draws members with gaps between their ids; some have no weight.
func drawSparse(t *rapid.T) (members []Member, count int) {
	for range rapid.IntRange(1, 20).Draw(t, "members") {
		count += rapid.IntRange(1, 3).Draw(t, "step")
		members = append(members, Member{
			ID: uint16(count - 1), DIP: address(uint32(count)), Port: 80, Weight: rapid.Uint16Range(0, 3).Draw(t, "weight"),
		})
	}
	return members, count
}

// TestPatchIsTheWalk: a patched ring gives every flow the same member as the walk over the full
// ring.
func TestPatchIsTheWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, count := drawSparse(t)
		whole := Build(8, members)
		if whole == nil {
			return
		}
		before := slices.Clone(whole)
		up := make([]bool, count)
		for _, m := range members {
			up[m.ID] = m.Weight > 0 && rapid.Bool().Draw(t, "up")
		}
		usable := func(id uint16) bool { return up[id] }
		patched := Patch(whole, 8, count, func(id uint16) bool { return !up[id] })
		if !slices.Equal(whole, before) {
			t.Fatal("the ring itself was changed")
		}
		for slot := range whole {
			want, ok := Choose(whole, 8, count, uint64(slot)<<56, usable)
			if !ok {
				want.Member = whole[slot]
			}
			if patched[slot] != want.Member {
				t.Fatalf("slot %d of member %d went to %d, the walk goes to %d", slot, whole[slot], patched[slot], want.Member)
			}
		}
	})
}

// TestPatchHasNoHistory: the ring depends only on the down members, not on the order in which
// members went down and came back. Every step moves only slots that the member loses or gets.
func TestPatchHasNoHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, count := drawSparse(t)
		whole := Build(8, members)
		if whole == nil {
			return
		}
		gone := make([]bool, count)
		for i := range gone {
			gone[i] = true
		}
		var weighty []uint16
		for _, m := range members {
			if m.Weight > 0 {
				gone[m.ID], weighty = false, append(weighty, m.ID)
			}
		}
		patch := func() []uint16 { return Patch(whole, 8, count, func(id uint16) bool { return gone[id] }) }
		allGone := func() bool { return !slices.Contains(gone, false) }
		now := whole
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			id, ended := rapid.SampledFrom(weighty).Draw(t, "member"), allGone()
			gone[id] = !gone[id]
			next := patch()
			for slot := range whole {
				if next[slot] != now[slot] && now[slot] != id && next[slot] != id && !ended && !allGone() {
					t.Fatalf("slot %d went from %d to %d when %d changed", slot, now[slot], next[slot], id)
				}
			}
			now = next
		}
		// All in one step, independent of the single steps.
		set := slices.Clone(gone)
		clear(gone)
		if at := Patch(whole, 8, count, func(id uint16) bool { return set[id] }); !slices.Equal(at, now) {
			t.Fatal("the batch differs from one by one")
		}
	})
}

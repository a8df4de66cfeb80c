package ring

import (
	"testing"

	"pgregory.net/rapid"
)

func TestChoose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 30).Draw(t, "members")
		members := make([]Member, n)
		up := make([]bool, n)
		any := false
		for i := range members {
			members[i] = Member{ID: uint16(i), DIP: address(uint32(i)), Port: 80, Weight: 1}
			up[i] = rapid.Bool().Draw(t, "up")
			any = any || up[i]
		}
		ring := Build(8, members)
		hash := rapid.Uint64().Draw(t, "hash")
		c, ok := Choose(ring, 8, n, hash, func(id uint16) bool { return up[id] })
		if ok != any || ok && !up[c.Member] {
			t.Fatalf("chose %+v, %v; up %v", c, ok, up)
		}
		if own := ring[hash>>56]; up[own] && (c.Member != own || c.Probes != 0) {
			t.Fatalf("slot %d is member %d's, which is up, but %+v was chosen", hash>>56, own, c)
		}
	})
}

// TestFallbackSpreads: the flows of a dead member move to all others, nearly evenly.
func TestFallbackSpreads(t *testing.T) {
	const n, code = 10, 14
	var members []Member
	for i := range n {
		members = append(members, Member{ID: uint16(i), DIP: address(uint32(i)), Port: 80, Weight: 1})
	}
	ring, got := Build(code, members), map[uint16]int{}
	for slot := range uint64(1 << code) {
		if ring[slot] == 3 {
			c, _ := Choose(ring, code, n, slot<<(64-code), func(id uint16) bool { return id != 3 })
			got[c.Member]++
		}
	}
	for id := range uint16(n) {
		if share := (1 << code) / n / (n - 1); id != 3 && (got[id] < share*7/10 || got[id] > share*13/10) {
			t.Errorf("member %d took %d slots of the dead one, expected about %d", id, got[id], share)
		}
	}
}

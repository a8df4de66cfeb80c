// Package sim holds deterministic simulators. They have neither clock nor randomness of their own.
package sim

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/shuntlb/shunt/internal/ring"
)

// Rule is how packets of established connections find their backend after the pool changed, when no mux remembers any.
type Rule string

// The rules, as results name them.
const (
	// PresentOwner: the present owner of the slot, and nobody else. What is left to consistent hashing without state.
	PresentOwner Rule = "maglev"
	// Modulo: the hash modulo the number of backends, in the order of the pool. Plain hashing.
	Modulo Rule = "modulo"
	// PreviousRing: a backend hands packets of unknown connections to the owner of the slot in the whole ring before. A daisy chain of one generation.
	PreviousRing Rule = "previous-ring"
	// Beamer: as PreviousRing, but each bucket has its own former owner, on Beamer's table instead of a ring.
	Beamer Rule = "beamer"
	// LastOwner: a backend hands what it does not know to the last owner of the slot that was another one. Shunt's repair.
	LastOwner Rule = "last-owner"
	// Published: Cheetah's cookies as its program has them (publishedCookie). Of stories only.
	Published Rule = "cheetah"
	// Cookies: Shunt's. Of stories only.
	Cookies Rule = "shunt"
)

// Pool is the backends of an endpoint at one time, with IDs that stay.
type Pool []ring.Member

// Broken tells of connections that begin with the first pool how many are lost after each change to the next one: they reach a backend that is
// not theirs, and are reset. Hashes are those of their flows. Pools must have members with weight; rules that are of stories only are none of its.
func Broken(rule Rule, pools []Pool, hashes []uint64) []int {
	if len(pools) < 2 {
		panic(fmt.Sprintf("sim: %d pools: must be 2 or more", len(pools)))
	}
	if rule == Published || rule == Cookies {
		panic(fmt.Sprintf("sim: rule %s needs a story", rule))
	}
	rings := ringsOf(pools)
	first := beamerOf(pools[:1], rings)
	lost := make([]bool, len(hashes))
	var out []int
	for now := 1; now < len(pools); now++ {
		reach := reach(rule, pools[:now+1], rings[:now+1])
		sum := 0
		for i, hash := range hashes {
			if !lost[i] {
				home := owner(rings[0], hash)
				switch rule {
				case Modulo:
					home = pools[0][hash%uint64(len(pools[0]))].ID
				case Beamer:
					home, _ = first.owners(hash)
				}
				lost[i] = !slices.Contains(reach(hash), home)
			}
			if lost[i] {
				sum++
			}
		}
		out = append(out, sum)
	}
	return out
}

// reach is who gets to see a packet of a flow under the last of the pools: the first, and who that may hand it to.
func reach(rule Rule, pools []Pool, rings [][]uint16) func(hash uint64) []uint16 {
	last := len(pools) - 1
	switch rule {
	case Modulo:
		pool := pools[last]
		return func(hash uint64) []uint16 { return []uint16{pool[hash%uint64(len(pool))].ID} }
	case PreviousRing:
		return func(hash uint64) []uint16 { return []uint16{owner(rings[last], hash), owner(rings[last-1], hash)} }
	case Beamer:
		table := beamerOf(pools, rings)
		return func(hash uint64) []uint16 {
			now, before := table.owners(hash)
			return []uint16{now, before}
		}
	case LastOwner:
		turns := ring.Fold(rings...)
		return func(hash uint64) []uint16 {
			t := turns.Slots[ring.Slot(hash, turns.Code)]
			return []uint16{t.Current(), t.Former()}
		}
	}
	return func(hash uint64) []uint16 { return []uint16{owner(rings[last], hash)} }
}

// beamerOf is Beamer's table after pools that followed one another, with as many buckets as the first one's ring has slots.
func beamerOf(pools []Pool, rings [][]uint16) (table *beamer) {
	code := uint8(bits.Len(uint(len(rings[0]))) - 1)
	for _, p := range pools {
		servers := make([]uint16, len(p))
		for i := range p {
			servers[i] = p[i].ID
		}
		if table == nil {
			table = newBeamer(code, servers)
		} else {
			table = table.next(servers)
		}
	}
	return table
}

// ringsOf makes the rings of pools that follow one another, of the sizes that plans give them.
func ringsOf(pools []Pool) [][]uint16 {
	var rings [][]uint16
	code := uint8(0)
	for _, p := range pools {
		var weights []uint16
		for _, m := range p {
			weights = append(weights, m.Weight)
		}
		code = ring.SizeCode(weights, code)
		rings = append(rings, ring.Build(code, p))
	}
	return rings
}

// owner is the member that has a hash in a ring.
func owner(r []uint16, hash uint64) uint16 {
	code := uint8(0)
	for 1<<code < len(r) {
		code++
	}
	return r[ring.Slot(hash, code)]
}

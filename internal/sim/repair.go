// Package sim holds deterministic simulators. They have neither clock nor randomness of their own.
package sim

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/shuntlb/shunt/internal/ring"
)

// Rule is how packets of established connections find their backend after the pool changed, without
// any mux flow entry.
type Rule string

// The rules, as results name them.
const (
	// PresentOwner selects the current owner of the slot alone: consistent hashing without state.
	PresentOwner Rule = "maglev"
	// Modulo selects by the hash modulo the number of backends, in the order of the pool: plain
	// hashing.
	Modulo Rule = "modulo"
	// PreviousRing makes a backend hand packets of unknown connections to the owner of the slot in
	// the complete previous ring: a daisy chain of one generation.
	PreviousRing Rule = "previous-ring"
	// Beamer is PreviousRing with a previous owner for each bucket, on Beamer's table instead of a
	// ring.
	Beamer Rule = "beamer"
	// LastOwner makes a backend hand packets of unknown connections to the last owner of the slot
	// that differs: Shunt's repair.
	LastOwner Rule = "last-owner"
	// Published selects by Cheetah's cookies as in its program (publishedCookie). For stories only.
	Published Rule = "cheetah"
	// Cookies selects by Shunt's cookies. For stories only.
	Cookies Rule = "shunt"
)

// Pool is the backends of an endpoint at one time, with stable IDs.
type Pool []ring.Member

// Broken returns, for connections that begin with the first pool, how many are lost after each
// change to the next one: they reach a backend that is not theirs, and are reset. hashes are those
// of their flows. Pools must have members with weight. Rules that are for stories only are not
// allowed.
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

// reach returns the members that can receive a packet of a flow under the last of the pools: the
// first receiver, and those to which it may hand the packet.
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

// beamerOf returns Beamer's table after consecutive pools, with as many buckets as the first one's
// ring has slots.
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

// ringsOf makes the rings of consecutive pools, in the sizes that plans give them.
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

// owner returns the member that owns a hash in a ring.
func owner(r []uint16, hash uint64) uint16 {
	code := uint8(0)
	for 1<<code < len(r) {
		code++
	}
	return r[ring.Slot(hash, code)]
}

package sim

import (
	"cmp"
	"slices"
)

// beamer is the table of Beamer (Olteanu et al., NSDI 2018): buckets with their current server and
// the server before the bucket's own last change. The current server hands packets of unknown
// connections to the server before. A bucket changes seldom, so its previous server stays known for
// long, whatever happens to other buckets. An added server takes its share of the buckets, the
// least recently changed ones, as long as no other server falls too far below its own share. The
// buckets of a removed server go to the servers with the fewest.
type beamer struct {
	now, before []uint16 // by bucket
	changed     []int    // by bucket: the update that changed it last
	updates     int
	servers     []uint16
}

// beamerSlack is how much of its share a server may lack, as a fraction: rather than take a
// recently changed bucket, an added server takes more from others.
const beamerSlack = 4

// newBeamer returns a table of 1 << code buckets, assigned in turn.
func newBeamer(code uint8, servers []uint16) *beamer {
	b := &beamer{now: make([]uint16, 1<<code), changed: make([]int, 1<<code), servers: servers}
	for i := range b.now {
		b.now[i] = servers[i%len(servers)]
	}
	b.before = slices.Clone(b.now)
	return b
}

// next returns the table after the servers changed to these.
func (b *beamer) next(servers []uint16) *beamer {
	n := &beamer{now: slices.Clone(b.now), before: slices.Clone(b.before), changed: slices.Clone(b.changed), updates: b.updates + 1, servers: servers}
	place := make(map[uint16]int, len(servers))
	for i, id := range servers {
		place[id] = i
	}
	owned, orphans := make([][]int, len(servers)), []int(nil)
	for bucket, id := range n.now {
		if i, stays := place[id]; stays {
			owned[i] = append(owned[i], bucket)
		} else {
			orphans = append(orphans, bucket)
		}
	}
	for i := range owned {
		slices.SortStableFunc(owned[i], func(x, y int) int { return cmp.Compare(n.changed[x], n.changed[y]) })
	}
	give := func(bucket, to int) {
		n.before[bucket], n.now[bucket], n.changed[bucket] = n.now[bucket], servers[to], n.updates
		owned[to] = append(owned[to], bucket)
	}
	for _, bucket := range orphans {
		give(bucket, first(owned, func(x, y []int) int { return cmp.Compare(len(x), len(y)) }))
	}
	share := len(n.now) / len(servers)
	least := share - share/beamerSlack
	// The oldest bucket of each is its first one. No server gives away buckets that it needs
	// itself.
	oldest := func(x, y []int) int {
		if len(x) <= least || len(y) <= least {
			return cmp.Compare(len(y), len(x))
		}
		return cmp.Or(cmp.Compare(n.changed[x[0]], n.changed[y[0]]), cmp.Compare(len(y), len(x)))
	}
	for i, id := range servers {
		for !slices.Contains(b.servers, id) && len(owned[i]) < share {
			from := first(owned, oldest)
			bucket := owned[from][0]
			owned[from] = owned[from][1:]
			give(bucket, i)
		}
	}
	return n
}

// first returns the index of the first least element.
func first(of [][]int, compare func(x, y []int) int) (least int) {
	for i := range of {
		if compare(of[i], of[least]) < 0 {
			least = i
		}
	}
	return least
}

// owners returns the current server of a hash's bucket and the previous one.
func (b *beamer) owners(hash uint64) (now, before uint16) {
	bucket := hash % uint64(len(b.now))
	return b.now[bucket], b.before[bucket]
}

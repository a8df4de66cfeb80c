package netdev

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// Ways holds the next hops of destinations at one moment. Destinations with the same next hop share
// its entry. It is immutable; the zero value has no destinations.
type Ways struct {
	of    []netip.Addr // in order, each once
	which []uint32     // of each, in hops
	hops  []NextHop    // in the order of their first destinations, each once
}

// WaysOf returns the Ways of a map.
func WaysOf(hops map[netip.Addr]NextHop) Ways {
	b := newWaysBuilder(slices.SortedFunc(maps.Keys(hops), netip.Addr.Compare))
	for i, to := range b.ways.of {
		b.set(i, hops[to])
	}
	return b.ways
}

// Len returns the number of destinations.
func (w Ways) Len() int { return len(w.of) }

// Hops returns the different next hops. The slice is never changed.
func (w Ways) Hops() []NextHop { return w.hops }

// Each iterates over the destinations in order, each once, with the index of its next hop in Hops.
func (w Ways) Each() iter.Seq2[netip.Addr, int] {
	return func(yield func(netip.Addr, int) bool) {
		for i, to := range w.of {
			if !yield(to, int(w.which[i])) {
				return
			}
		}
	}
}

// Which returns the index in Hops of a destination's next hop; false: it is not among the
// destinations.
func (w Ways) Which(destination netip.Addr) (int, bool) {
	i, ok := slices.BinarySearchFunc(w.of, destination, netip.Addr.Compare)
	if !ok {
		return 0, false
	}
	return int(w.which[i]), true
}

// To returns a destination's next hop; false: it is not among the destinations.
func (w Ways) To(destination netip.Addr) (NextHop, bool) {
	i, ok := w.Which(destination)
	if !ok {
		return NextHop{}, false
	}
	return w.hops[i], true
}

// Map returns the next hops by destination.
func (w Ways) Map() map[netip.Addr]NextHop {
	out := make(map[netip.Addr]NextHop, len(w.of))
	for i, to := range w.of {
		out[to] = w.hops[w.which[i]]
	}
	return out
}

// equal reports whether both have the same destinations and next hops.
func (w Ways) equal(x Ways) bool {
	return slices.Equal(w.hops, x.hops) && slices.Equal(w.which, x.which) && slices.Equal(w.of, x.of)
}

// waysBuilder builds Ways.
type waysBuilder struct {
	ways  Ways
	known map[NextHop]uint32
}

// newWaysBuilder returns a builder for sorted destinations without duplicates.
func newWaysBuilder(of []netip.Addr) waysBuilder {
	return waysBuilder{Ways{of: of, which: make([]uint32, len(of))}, map[NextHop]uint32{}}
}

// set sets the next hop of destination i. It must be called in the order of destinations.
func (b *waysBuilder) set(i int, hop NextHop) uint32 {
	at, ok := b.known[hop]
	if !ok {
		at = uint32(len(b.ways.hops))
		b.known[hop] = at
		b.ways.hops = append(b.ways.hops, hop)
	}
	b.ways.which[i] = at
	return at
}

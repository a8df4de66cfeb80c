package netdev

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// Ways tells how destinations are reached, at one moment. Destinations that are reached alike share what is known of it. It never
// changes; the zero value has no destinations.
type Ways struct {
	of    []netip.Addr // in order, each once
	which []uint32     // of each, in hops
	hops  []NextHop    // in the order of their first destinations, each once
}

// WaysOf are those of a map.
func WaysOf(hops map[netip.Addr]NextHop) Ways {
	b := newWaysBuilder(slices.SortedFunc(maps.Keys(hops), netip.Addr.Compare))
	for i, to := range b.ways.of {
		b.set(i, hops[to])
	}
	return b.ways
}

// Len is the number of destinations.
func (w Ways) Len() int { return len(w.of) }

// Hops are the different ways, which nobody changes.
func (w Ways) Hops() []NextHop { return w.hops }

// Each are the destinations in order, each once, with the index of its way in Hops.
func (w Ways) Each() iter.Seq2[netip.Addr, int] {
	return func(yield func(netip.Addr, int) bool) {
		for i, to := range w.of {
			if !yield(to, int(w.which[i])) {
				return
			}
		}
	}
}

// Which is the index in Hops of the way to a destination; false: it is none of these.
func (w Ways) Which(destination netip.Addr) (int, bool) {
	i, ok := slices.BinarySearchFunc(w.of, destination, netip.Addr.Compare)
	if !ok {
		return 0, false
	}
	return int(w.which[i]), true
}

// To is the way to a destination; false: it is none of these.
func (w Ways) To(destination netip.Addr) (NextHop, bool) {
	i, ok := w.Which(destination)
	if !ok {
		return NextHop{}, false
	}
	return w.hops[i], true
}

// Map is the ways by destination.
func (w Ways) Map() map[netip.Addr]NextHop {
	out := make(map[netip.Addr]NextHop, len(w.of))
	for i, to := range w.of {
		out[to] = w.hops[w.which[i]]
	}
	return out
}

// equal tells whether two say the same.
func (w Ways) equal(x Ways) bool {
	return slices.Equal(w.hops, x.hops) && slices.Equal(w.which, x.which) && slices.Equal(w.of, x.of)
}

// waysBuilder makes Ways.
type waysBuilder struct {
	ways  Ways
	known map[NextHop]uint32
}

// newWaysBuilder begins with destinations in order, each once.
func newWaysBuilder(of []netip.Addr) waysBuilder {
	return waysBuilder{Ways{of: of, which: make([]uint32, len(of))}, map[NextHop]uint32{}}
}

// set tells the way to destination i; they come in order.
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

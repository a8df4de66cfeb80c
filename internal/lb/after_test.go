package lb

import (
	"net/netip"
	"slices"
)

// ValidateAfter is the naive form of State.Check: it returns the faults after edits of a state,
// where an object that had an address before keeps it.
func ValidateAfter(before, after []Object, edits []Edit) []Violation {
	l, objects := listedOf(after)
	edited := map[id]bool{}
	for _, e := range edits {
		edited[id{e.Kind, e.Name}] = true
	}
	for _, c := range []struct {
		kind    Kind
		claims  map[netip.Addr]string
		claimed func(Object) []netip.Addr
	}{{KindService, l.vips, claimed}, {KindNode, l.nodes, claimed}, {KindService, l.snats, snatOf}, {KindNode, l.routers, routersOf}} {
		for addr := range c.claims {
			has := func(o Object) bool { return o.Kind() == c.kind && slices.Contains(c.claimed(o), addr) }
			rank := func(o Object) int {
				switch {
				case !edited[idOf(o)]:
					return 0
				case slices.ContainsFunc(before, func(b Object) bool { return idOf(b) == idOf(o) && has(b) }):
					return 1
				}
				return 2
			}
			best := 3
			for _, o := range objects {
				if has(o) && rank(o) < best {
					best, c.claims[addr] = rank(o), o.ObjectName()
				}
			}
		}
	}
	return l.faults(objects)
}

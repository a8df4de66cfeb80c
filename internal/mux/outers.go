package mux

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/plan"
)

// outers are the tunnel destinations of plans, counted by the members that have them. They have no lock.
type outers struct {
	members map[netip.Addr]int
	// moved are those that came or went since list, which was ordered.
	moved   map[netip.Addr]bool
	ordered []netip.Addr
}

func newOuters() outers { return outers{members: map[netip.Addr]int{}, moved: map[netip.Addr]bool{}} }

// add counts the destinations of an endpoint's members; nil has none.
func (o *outers) add(e *plan.Endpoint) {
	for _, m := range membersOf(e) {
		n := o.members[m.Outer]
		if o.members[m.Outer] = n + 1; n == 0 {
			o.moved[m.Outer] = true
		}
	}
}

// remove is the inverse of add.
func (o *outers) remove(e *plan.Endpoint) {
	for _, m := range membersOf(e) {
		if n := o.members[m.Outer]; n > 1 {
			o.members[m.Outer] = n - 1
		} else {
			delete(o.members, m.Outer)
			o.moved[m.Outer] = true
		}
	}
}

func membersOf(e *plan.Endpoint) []plan.Member {
	if e == nil {
		return nil
	}
	return e.Members
}

// has tells whether a member has the destination.
func (o *outers) has(to netip.Addr) bool { return o.members[to] > 0 }

// list is all of them, in order; it is never changed.
func (o *outers) list() []netip.Addr {
	out, rest := make([]netip.Addr, 0, len(o.members)), o.ordered
	for _, to := range slices.SortedFunc(maps.Keys(o.moved), netip.Addr.Compare) {
		at, there := slices.BinarySearchFunc(rest, to, netip.Addr.Compare)
		out, rest = append(out, rest[:at]...), rest[at:]
		if there {
			rest = rest[1:]
		}
		if o.has(to) {
			out = append(out, to)
		}
	}
	o.ordered = append(out, rest...)
	clear(o.moved)
	return o.ordered
}

package mux

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/plan"
)

// outers counts the tunnel destinations of plans by the members that have them, and of servers that
// hold ports of VIPs. It has no lock.
type outers struct {
	members map[netip.Addr]int
	// leased are the destinations of servers, each counted once in members.
	leased map[netip.Addr]bool
	// moved are the destinations that were added or removed since the last list. ordered is that
	// list.
	moved   map[netip.Addr]bool
	ordered []netip.Addr
}

func newOuters() outers { return outers{members: map[netip.Addr]int{}, moved: map[netip.Addr]bool{}} }

// add counts the destinations of an endpoint's members; nil: none.
func (o *outers) add(e *plan.Endpoint) {
	for _, m := range membersOf(e) {
		o.addOne(m.Outer)
	}
}

func (o *outers) addOne(to netip.Addr) {
	n := o.members[to]
	if o.members[to] = n + 1; n == 0 {
		o.moved[to] = true
	}
}

// remove is the inverse of add.
func (o *outers) remove(e *plan.Endpoint) {
	for _, m := range membersOf(e) {
		o.removeOne(m.Outer)
	}
}

func (o *outers) removeOne(to netip.Addr) {
	if n := o.members[to]; n > 1 {
		o.members[to] = n - 1
	} else {
		delete(o.members, to)
		o.moved[to] = true
	}
}

// lease replaces the destinations of servers that hold ports.
func (o *outers) lease(all []netip.Addr) {
	next := make(map[netip.Addr]bool, len(all))
	for _, to := range all {
		if next[to] {
			continue
		}
		if next[to] = true; !o.leased[to] {
			o.addOne(to)
		}
	}
	for to := range o.leased {
		if !next[to] {
			o.removeOne(to)
		}
	}
	o.leased = next
}

func membersOf(e *plan.Endpoint) []plan.Member {
	if e == nil {
		return nil
	}
	return e.Members
}

// has reports whether a member has the destination.
func (o *outers) has(to netip.Addr) bool { return o.members[to] > 0 }

// list returns all destinations, sorted. The slice is never changed in place.
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

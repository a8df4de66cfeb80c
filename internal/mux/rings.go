package mux

import (
	"slices"
	"sync"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// RingBuilder builds an endpoint's ring: 1<<code member ids; nil when no member has weight. The
// result depends on the arguments only, so that all muxes agree.
type RingBuilder func(code uint8, members []plan.Member) []uint16

// builders is a pool of ring builders with their workspaces.
var builders = sync.Pool{New: func() any { return new(ring.Builder) }}

// BuildRing is the RingBuilder that every mux uses.
func BuildRing(code uint8, members []plan.Member) []uint16 {
	in := make([]ring.Member, len(members))
	for i, m := range members {
		in[i] = ring.Member{ID: m.ID, DIP: m.DIP, Port: m.Port, Weight: m.Weight}
	}
	b := builders.Get().(*ring.Builder)
	defer builders.Put(b)
	return b.Build(code, in)
}

// rings caches the inputs of the rings in the tables. A ring is rebuilt only if its inputs changed,
// and only patched if nothing but the set of down members changed. Rings that the tables have are
// not cached, because they are most of a mux's memory.
type rings struct {
	build RingBuilder
	// held reads an endpoint's rings from the tables.
	held func(lb.EndpointKey) (main, backup []uint16)
	made map[lb.EndpointKey]*madeRings
	// next are the rings of the plan that is being applied, in the order of its endpoints.
	next []nextRings
}

// madeRings are the rings of all configured members of an endpoint: main without the backups,
// backup with them. They are nil where the tables have them, or where there are none.
type madeRings struct {
	members      []plan.Member
	main, backup []uint16
	code         uint8
}

// nextRings are an endpoint's rings as the tables should have them.
type nextRings struct {
	of           *madeRings
	main, backup []uint16
	kept         bool // the tables have them, main and backup are nil
}

// make builds the endpoint's rings, or the part that must be rebuilt. It changes no state.
func (r *rings) make(e plan.Endpoint) nextRings {
	have := r.made[e.Key]
	same := have != nil && have.code == e.RingCode && slices.EqualFunc(have.members, e.Members, sameInRing)
	if same && slices.EqualFunc(have.members, e.Members, sameDown) {
		return nextRings{of: have, kept: true}
	}
	made := &madeRings{members: e.Members, code: e.RingCode}
	if same {
		made.main, made.backup = r.wholesOf(e, have)
	} else {
		made.main, made.backup = r.wholes(e)
	}
	return nextRings{
		of: made, main: patched(made.main, e, func(m plan.Member) bool { return !m.Backup }),
		backup: patched(made.backup, e, func(plan.Member) bool { return true }),
	}
}

// wholesOf returns the rings of all configured members, read from the tables where they are not
// cached.
func (r *rings) wholesOf(e plan.Endpoint, have *madeRings) (main, backup []uint16) {
	if have.main != nil && (have.backup != nil || !hasBackups(e)) {
		return have.main, have.backup
	}
	main, backup = r.held(e.Key)
	if have.main != nil {
		main = have.main
	}
	if have.backup != nil {
		backup = have.backup
	}
	return main, backup
}

// obeyed records whether the tables took the endpoints prepared last, which are all endpoints. If
// not, the rings in the tables are unknown, and all are rebuilt.
func (r *rings) obeyed(endpoints []plan.Endpoint, yes bool) {
	if !yes {
		r.next = nil
		clear(r.made)
		return
	}
	next := r.next
	r.changed(endpoints, true)
	if len(r.made) == len(endpoints) {
		return
	}
	r.made = make(map[lb.EndpointKey]*madeRings, len(endpoints))
	for i, n := range next {
		r.made[endpoints[i].Key] = n.of
	}
}

// changed is like obeyed for some of the endpoints.
func (r *rings) changed(endpoints []plan.Endpoint, yes bool) {
	next := r.next
	r.next = nil
	for i, n := range next {
		switch {
		case !yes:
			delete(r.made, endpoints[i].Key)
		case n.kept:
			n.of.members = endpoints[i].Members // releases the previous plan's slice
		default:
			n.of.main, n.of.backup = unlessSame(n.of.main, n.main), unlessSame(n.of.backup, n.backup)
			r.made[endpoints[i].Key] = n.of
		}
	}
}

// forget removes an endpoint that the tables no longer have.
func (r *rings) forget(key lb.EndpointKey) { delete(r.made, key) }

// unlessSame returns whole, or nil if the tables were given the same slice.
func unlessSame(whole, given []uint16) []uint16 {
	if len(whole) == 0 || &whole[0] == &given[0] {
		return nil
	}
	return whole
}

// hasBackups reports whether an endpoint has a second ring.
func hasBackups(e plan.Endpoint) bool {
	return slices.ContainsFunc(e.Members, func(m plan.Member) bool { return m.Backup && m.Weight > 0 })
}

// wholes builds the rings of all configured members.
func (r *rings) wholes(e plan.Endpoint) (main, backup []uint16) {
	if !hasBackups(e) {
		return r.build(e.RingCode, e.Members), nil
	}
	others := slices.DeleteFunc(slices.Clone(e.Members), func(m plan.Member) bool { return m.Backup })
	return r.build(e.RingCode, others), r.build(e.RingCode, e.Members)
}

// patched returns whole with the down members, and those that do not take part, replaced.
func patched(whole []uint16, e plan.Endpoint, takesPart func(plan.Member) bool) []uint16 {
	if len(whole) == 0 || !slices.ContainsFunc(e.Members, func(m plan.Member) bool { return m.Down }) {
		return whole
	}
	count := 0
	for _, m := range e.Members {
		count = max(count, int(m.ID)+1)
	}
	gone := make([]bool, count)
	for i := range gone {
		gone[i] = true
	}
	for _, m := range e.Members {
		gone[m.ID] = m.Down || m.Weight == 0 || !takesPart(m)
	}
	return ring.Patch(whole, e.RingCode, count, func(id uint16) bool { return gone[id] })
}

// sameInRing reports whether two members have the same effect on the ring of all configured
// members.
func sameInRing(a, b plan.Member) bool {
	return a.ID == b.ID && a.DIP == b.DIP && a.Port == b.Port && a.Weight == b.Weight && a.Backup == b.Backup
}

func sameDown(a, b plan.Member) bool { return a.Down == b.Down }

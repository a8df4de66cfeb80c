package sched

import (
	"cmp"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// Parts returns the share of new connections of each member by the last orders, 0 to 1; empty
// before the first ones. Members without a share are left out.
func (d *Desk) Parts() map[uint16]float64 {
	out := map[uint16]float64{}
	for _, id := range d.sequence {
		out[id] += 1 / float64(len(d.sequence))
	}
	if d.Scheduler != lb.SchedulerP2C {
		return out
	}
	return d.given.lighter(out, len(d.sequence))
}

// lighter returns the probabilities that members are selected from two drawn places; drawn holds
// their parts of the places.
func (g *given) lighter(drawn map[uint16]float64, places int) map[uint16]float64 {
	if places < 2 {
		return drawn
	}
	type member struct {
		id   uint16
		part float64
		load uint64
	}
	var all []member
	for id, part := range drawn {
		all = append(all, member{id, part, Given(g.words[id]) & scoreMask})
	}
	slices.SortFunc(all, func(a, b member) int { return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(a.id, b.id)) })
	out, heavier := make(map[uint16]float64, len(all)), 1.0
	for i := 0; i < len(all); {
		j, equal := i, 0.0
		for ; j < len(all) && all[j].load == all[i].load; j++ {
			equal += all[j].part
		}
		heavier -= equal
		for ; i < j; i++ {
			// The member is selected when drawn with a heavier one in either place; of equals the
			// first one is selected. The two places always differ.
			out[all[i].id] = all[i].part * ((2*heavier+equal)*float64(places) - 1) / float64(places-1)
		}
	}
	return out
}

package place

import (
	"cmp"
	"slices"
)

// lanes holds the fields of muxes that the choice of a zone's best mux compares first, contiguous
// in memory by zone, because this is most of the work of placing all VIPs.
type lanes struct {
	muxes    []int32
	hashes   []uint64
	measures [measures][]uint64
}

// span is the muxes of one zone in lanes.
type span struct{ from, to int32 }

func (l *lanes) clear() {
	l.muxes, l.hashes = l.muxes[:0], l.hashes[:0]
	for by := range l.measures {
		l.measures[by] = l.measures[by][:0]
	}
}

// set updates a mux.
func (l *lanes) set(lane int32, m *meter) {
	for by := range l.measures {
		l.measures[by][lane] = m.measure[by]
	}
}

// layOut appends muxes by zone, in their order.
func (p *Placer) layOut(muxes []int32) []span {
	l := &p.lanes
	out := make([]span, len(p.zones))
	for z := range out {
		out[z].from = int32(len(l.muxes))
		for _, i := range muxes {
			m := &p.muxes[i]
			if m.zone != z {
				continue
			}
			m.lane = int32(len(l.muxes))
			l.muxes, l.hashes = append(l.muxes, i), append(l.hashes, m.hash)
			for by := range l.measures {
				l.measures[by] = append(l.measures[by], p.meters[i].measure[by])
			}
		}
		out[z].to = int32(len(l.muxes))
	}
	return out
}

// rankNames sets the ranks of the muxes by name.
func (p *Placer) rankNames() {
	byName := p.ordered()
	slices.SortFunc(byName, func(a, b int32) int { return cmp.Compare(p.muxes[a].Name, p.muxes[b].Name) })
	for rank, i := range byName {
		p.muxes[i].rank = int32(rank)
	}
}

// appendNames appends the names of the VIP's muxes, ordered by their ranks. It is for use in a
// step.
func (p *Placer) appendNames(names []string, v *vip) []string {
	from := len(names)
	for k, i := range v.on {
		names = append(names, p.muxes[i].Name)
		for ; k > 0 && p.muxes[v.on[k]].rank < p.muxes[v.on[k-1]].rank; k-- {
			v.on[k], v.on[k-1] = v.on[k-1], v.on[k]
			v.at[k], v.at[k-1] = v.at[k-1], v.at[k]
		}
	}
	for k, i := range v.on {
		names[from+k] = p.muxes[i].Name
	}
	return names
}

package place

import (
	"cmp"
	"slices"
)

// maxSearch limits the VIPs that a step checks to make room: about a tenth of a second.
const maxSearch = 2_000_000

// makeRoom moves VIPs from full muxes to others with room if that gives a mux to a short VIP. Room
// alone is not enough if all muxes with room already serve the VIP. It reports whether it added any
// mux, because a VIP with more muxes takes less of each, which may be the room that another one
// lacks.
func (p *Placer) makeRoom() (made bool) {
	budget := maxSearch
	for _, i := range slices.Clone(p.short) {
		v := &p.vips[i]
		for len(v.on) < min(v.Replicas, len(p.present)) && p.room() && budget > 0 && p.makeRoomFor(i, &budget) {
			v.short, made = len(v.on) < v.Replicas, true
		}
	}
	p.short = slices.DeleteFunc(p.short, func(i int32) bool { return !p.vips[i].short })
	return made
}

// room reports whether any mux has room for one more.
func (p *Placer) room() bool {
	return slices.ContainsFunc(p.present, func(i int32) bool { return !p.muxes[i].full() })
}

// step is one step of a search: the VIP moves from the mux of the step before to this mux.
type step struct {
	mux, vip int32
	before   int // index of the step, -1 for the first
}

// makeRoomFor searches, breadth first, for a chain of moves: the short VIP takes the place of
// another, which takes that of a third, until one moves to a mux with room. It reports whether it
// found and executed one.
func (p *Placer) makeRoomFor(i int32, budget *int) bool {
	v := &p.vips[i]
	needed := share(v.Load, len(v.on)+1)
	seen := map[int32]bool{}
	var chain []step
	starts := slices.DeleteFunc(slices.Clone(p.present), func(m int32) bool { return slices.Contains(v.on, m) })
	slices.SortFunc(starts, func(a, b int32) int {
		return cmp.Compare(tie(v.hash, p.muxes[a].hash), tie(v.hash, p.muxes[b].hash))
	})
	for _, m := range starts {
		seen[m] = true
		chain = append(chain, step{mux: m, vip: i, before: -1})
	}
	for at := 0; at < len(chain); at++ {
		here := chain[at]
		comes := needed
		if here.before >= 0 {
			comes = p.vips[here.vip].share()
		}
		m := &p.muxes[here.mux]
		list := slices.Clone(m.vips)
		p.sortByHash(list, m.hash)
		for _, j := range list {
			if *budget--; *budget < 0 {
				return false
			}
			o := &p.vips[j]
			leaves := o.share()
			if j == i || comes > leaves && !m.carries(comes-leaves) {
				continue
			}
			for _, to := range p.present {
				if seen[to] || slices.Contains(o.on, to) {
					continue
				}
				if p.muxes[to].fits(leaves) {
					p.follow(chain, at, j, to)
					return true
				}
				seen[to] = true
				chain = append(chain, step{mux: to, vip: j, before: at})
			}
		}
	}
	return false
}

// follow executes the moves of a chain from its end; the last one moves a VIP to a mux with room.
func (p *Placer) follow(chain []step, at int, last, to int32) {
	p.move(last, chain[at].mux, to)
	for ; chain[at].before >= 0; at = chain[at].before {
		p.move(chain[at].vip, chain[chain[at].before].mux, chain[at].mux)
	}
	p.add(chain[at].vip, []int32{chain[at].mux})
}

// relieve moves VIPs from muxes whose packets exceed their capacity to others with room, as few as
// possible: the lightest that is enough, else the heaviest.
func (p *Placer) relieve() {
	over := slices.DeleteFunc(slices.Concat(p.present, p.away), func(i int32) bool { return p.muxes[i].excess() == 0 })
	slices.SortFunc(over, func(a, b int32) int {
		x, y := &p.muxes[a], &p.muxes[b]
		return cmp.Or(cmp.Compare(y.excess(), x.excess()), cmp.Compare(x.hash, y.hash))
	})
	for _, i := range over {
		for p.muxes[i].excess() > 0 && p.relieveOne(i) {
		}
	}
}

// relieveOne moves one VIP off an overloaded mux and reports whether it found one.
func (p *Placer) relieveOne(from int32) bool {
	m := &p.muxes[from]
	list := slices.Clone(m.vips)
	p.sortByHash(list, m.hash)
	slices.SortStableFunc(list, func(a, b int32) int { return cmp.Compare(p.vips[b].share(), p.vips[a].share()) })
	enough := 0
	for enough < len(list) && p.vips[list[enough]].share() >= m.excess() {
		enough++
	}
	slices.Reverse(list[:enough])
	for _, i := range list {
		v := &p.vips[i]
		if v.share() == 0 {
			return false
		}
		if to := p.relief(v, from); to >= 0 {
			p.move(i, from, to)
			return true
		}
	}
	return false
}

// relief returns the mux that replaces an overloaded one for a VIP, -1 if none has room. It prefers
// one with which the VIP is in no fewer zones.
func (p *Placer) relief(v *vip, from int32) int32 {
	p.shun(v)
	var keeps, loses candidate
	for _, i := range p.present {
		best := &loses
		if p.keepsZones(v, from, i) {
			best = &keeps
		}
		if c := p.candidate(v, i, v.share()); c.ok && c.before(best) {
			*best = c
		}
	}
	switch {
	case keeps.ok:
		return keeps.mux
	case loses.ok:
		return loses.mux
	}
	return -1
}

package place

import (
	"cmp"
	"slices"
	"sort"
)

// evening makes muxes even by one measure.
type evening struct {
	p  *Placer
	by By
	// bound is the difference that starts it, target the difference at which a mux that was out of
	// bounds is even enough.
	bound, target, mean uint64
	// marked are the muxes that are out of bounds.
	marked map[int32]bool
	// blocked are pairs of muxes between which nothing can move.
	blocked map[[2]int32]bool
	// lists are the VIPs of muxes, in the order in which they are tried; some may have moved since.
	lists map[int32][]int32
	// least are the emptiest muxes by zone, -1 for none.
	least []int32
}

// even moves VIPs from the fullest muxes to the emptiest when they differ by more than the bound,
// and reports whether it moved any.
func (p *Placer) even(by By) (moved bool) {
	if len(p.present) < 2 {
		return false
	}
	e := p.newEvening(by)
	for e.pass() {
		moved = true
		if len(e.blocked) == 0 {
			break
		}
		// The moves may have unblocked a pair.
		clear(e.blocked)
		clear(e.lists)
	}
	return moved
}

func (p *Placer) newEvening(by By) *evening {
	e := &evening{
		p: p, by: by, marked: map[int32]bool{}, blocked: map[[2]int32]bool{}, lists: map[int32][]int32{}, least: make([]int32, len(p.zones)),
	}
	// Divide by the number of muxes first, because the sum of their measures may exceed 64 bits.
	// Round up.
	n := uint64(len(p.present))
	rest := n - 1
	for _, i := range p.present {
		m := p.muxes[i].measure(by)
		e.mean = saturate(e.mean, m/n)
		rest += m % n
	}
	e.mean = saturate(e.mean, rest/n)
	if by == ByLoad {
		e.bound = max(1, percent(e.mean, p.bounds.Load))
		e.target = e.bound / 2
	} else {
		e.bound, e.target = max(1, percent(e.mean, p.bounds.VIPs)), 1
	}
	return e
}

// percent returns a percentage of a number, without overflow.
func percent(n uint64, percent uint32) uint64 {
	return saturate(saturateMul(n/100, uint64(percent)), n%100*uint64(percent)/100)
}

func saturateMul(a, b uint64) uint64 {
	if a != 0 && b > ^uint64(0)/a {
		return ^uint64(0)
	}
	return a * b
}

// pass moves VIPs until no pair needs it, and reports whether it moved any.
func (e *evening) pass() (moved bool) {
	for {
		from, to, ok := e.widest()
		if !ok {
			return moved
		}
		i := e.candidate(from, to)
		if i < 0 {
			e.blocked[[2]int32{from, to}] = true
			continue
		}
		e.mark(from, to)
		e.p.move(i, from, to)
		moved = true
	}
}

// mark marks the one of two muxes that is out of bounds: the one further from the mean.
func (e *evening) mark(from, to int32) {
	a, b := &e.p.muxes[from], &e.p.muxes[to]
	if e.marked[from] || e.marked[to] {
		if a.measure(e.by)-b.measure(e.by) <= e.bound {
			return
		}
	}
	if above, below := distance(a.measure(e.by), e.mean), distance(b.measure(e.by), e.mean); above > below {
		e.marked[from] = true
	} else {
		e.marked[to] = true
	}
}

func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }

// widest returns the pair with the largest difference among those that need a move.
func (e *evening) widest() (from, to int32, ok bool) {
	e.findLeast()
	var gap, tie uint64
	for _, a := range e.p.present {
		x := &e.p.muxes[a]
		if x.by[e.by] == 0 {
			continue
		}
		for z, b := range e.least {
			if z != x.zone && x.leave[e.by][z] == 0 {
				continue
			}
			if b >= 0 && len(e.blocked) > 0 && e.blocked[[2]int32{a, b}] {
				b = e.leastUnblocked(a, z)
			}
			if b < 0 || !e.asks(a, b) {
				continue
			}
			d, h := x.measure(e.by)-e.p.muxes[b].measure(e.by), mix(x.hash^mix(e.p.muxes[b].hash))
			if !ok || d > gap || d == gap && h < tie {
				from, to, gap, tie, ok = a, b, d, h, true
			}
		}
	}
	return from, to, ok
}

// asks reports whether two muxes differ so much that a VIP should move.
func (e *evening) asks(a, b int32) bool {
	x, y := e.p.muxes[a].measure(e.by), e.p.muxes[b].measure(e.by)
	return x > y && (x-y > e.bound || x-y > e.target && (e.marked[a] || e.marked[b]))
}

func (e *evening) findLeast() {
	for z := range e.least {
		e.least[z] = -1
	}
	for _, i := range e.p.present {
		m := &e.p.muxes[i]
		if !m.full() && e.less(i, e.least[m.zone]) {
			e.least[m.zone] = i
		}
	}
}

// less reports whether mux a is emptier than b, which may be -1.
func (e *evening) less(a, b int32) bool {
	if b < 0 {
		return true
	}
	x, y := &e.p.muxes[a], &e.p.muxes[b]
	return cmp.Or(cmp.Compare(x.measure(e.by), y.measure(e.by)), cmp.Compare(x.hash, y.hash)) < 0
}

// leastUnblocked returns the emptiest mux of a zone to which a VIP may move from a.
func (e *evening) leastUnblocked(a int32, zone int) int32 {
	least := int32(-1)
	for _, i := range e.p.present {
		if m := &e.p.muxes[i]; m.zone == zone && i != a && !m.full() && !e.blocked[[2]int32{a, i}] && e.less(i, least) {
			least = i
		}
	}
	return least
}

// candidate returns a VIP to move, -1 if there is none. Of VIPs that are placed by load it returns
// the heaviest that moves at most half of the difference, else the lightest that reduces the
// difference.
func (e *evening) candidate(from, to int32) int32 {
	list := e.list(from)
	if e.by == ByVIPs {
		for _, i := range list {
			if e.movable(i, from, to) {
				return i
			}
		}
		return -1
	}
	gap := e.p.muxes[from].measure(e.by) - e.p.muxes[to].measure(e.by)
	half := sort.Search(len(list), func(k int) bool { return e.p.vips[list[k]].share() <= gap/2 })
	for _, i := range list[half:] {
		if e.p.vips[i].share() == 0 {
			break
		}
		if e.movable(i, from, to) {
			return i
		}
	}
	for k := half - 1; k >= 0; k-- {
		if i := list[k]; e.p.vips[i].share() >= gap {
			break
		} else if e.movable(i, from, to) {
			return i
		}
	}
	return -1
}

// list returns the VIPs that may move from a mux.
func (e *evening) list(from int32) []int32 {
	if list, ok := e.lists[from]; ok {
		// Most of those at the front have already moved.
		for len(list) > 0 && !slices.Contains(e.p.vips[list[0]].on, from) {
			list = list[1:]
		}
		e.lists[from] = list
		return list
	}
	var list []int32
	for _, i := range e.p.muxes[from].vips {
		if e.p.vips[i].By == e.by {
			list = append(list, i)
		}
	}
	e.p.sortByHash(list, e.p.muxes[from].hash)
	if e.by == ByLoad {
		slices.SortStableFunc(list, func(a, b int32) int { return cmp.Compare(e.p.vips[b].share(), e.p.vips[a].share()) })
	}
	e.lists[from] = list
	return list
}

// movable reports whether a VIP may move from one mux to another: it is on from and not on to,
// there is room, and it is in no fewer zones afterwards.
func (e *evening) movable(i, from, to int32) bool {
	v, y := &e.p.vips[i], &e.p.muxes[to]
	if slices.Contains(v.on, to) || !slices.Contains(v.on, from) || !y.fits(v.share()) {
		return false
	}
	return e.p.keepsZones(v, from, to)
}

// keepsZones reports whether a VIP that moves from one mux to another is in no fewer zones
// afterwards.
func (p *Placer) keepsZones(v *vip, from, to int32) bool {
	a, b := p.muxes[from].zone, p.muxes[to].zone
	if a == b {
		return true
	}
	sole, there := true, false
	for _, m := range v.on {
		z := p.muxes[m].zone
		sole = sole && (m == from || z != a)
		there = there || z == b
	}
	return !sole || !there
}

// sortByHash orders VIPs by a hash that depends on the salt.
func (p *Placer) sortByHash(list []int32, salt uint64) {
	turns := make([]turn, len(list))
	for k, i := range list {
		turns[k] = turn{hash: tie(p.vips[i].hash, salt), vip: i}
	}
	slices.SortFunc(turns, func(a, b turn) int {
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		return p.vips[a.vip].Key.Compare(p.vips[b.vip].Key)
	})
	for k, t := range turns {
		list[k] = t.vip
	}
}

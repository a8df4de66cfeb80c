package place

import (
	"slices"
)

// mux is a Mux with what is on it.
type mux struct {
	Mux
	hash uint64
	zone int
	// gone: it was dropped; its slot is free.
	gone bool
	// vips are the slots of VIPs on it, in no order.
	vips []int32
	// by is how many of them are placed by each measure, load what their packets come to.
	by   [measures]int
	load uint64
	// lane is its index in Placer.lanes, -1 when VIPs are not to be placed on it.
	lane int32
	// rank orders muxes by name, as of the last step.
	rank int32
	// leave is how many of them, by measure and zone, could go to that zone and be in no fewer zones than now. What
	// stands under its own zone means nothing.
	leave [measures][]int32
}

// meter is what choosing among muxes compares, of one mux, apart from the rest of it: that fills a cache line or two.
type meter struct {
	measure [measures]uint64
	// second decides where measures are equal.
	second [measures]int32
	hash   uint64
	// seen is the mark of the VIP that is being placed, for muxes that it may not take.
	seen uint64
	zone int32
	// full: it has as many VIPs as it can take.
	full bool
}

// vip is a VIP with where it is.
type vip struct {
	VIP
	hash uint64
	used bool
	// on are slots of muxes, and at the VIP's index in each one's list; in no order.
	on, at []int32
	// noted: it is among the changed, and was holds where it was then.
	noted bool
	was   []string
	// dirty: it has to be looked at. short: it has fewer muxes than it asks for.
	dirty, short bool
}

// Placer keeps VIPs on muxes. Set, Drop and Restore tell it what there is; Step decides. What Step decides depends on
// what there is and on where the VIPs were, not on how it came about.
type Placer struct {
	bounds Bounds

	muxes  []mux
	meters []meter // of muxes
	byName map[string]int32
	// freeMuxes are slots to use again.
	freeMuxes []int32
	zones     map[string]int
	vips      []vip
	byKey     map[Key]int32
	// freeVIPs are slots to use again, goneVIPs those that are free after the next step.
	freeVIPs, goneVIPs []int32

	// changed, dirty and short are slots of VIPs; some may not be what they were noted for any more.
	changed, dirty, short []int32
	// opened is set, by zone, when a mux there got room after it had none.
	opened []bool
	// narrow is how many VIPs have two muxes in one zone and none in another; recount: it is not known.
	narrow  int
	recount bool
	mark    uint64

	// Made at the beginning of each step: present muxes and those that are away, all and by zone.
	present, away     []int32
	lanes             lanes
	presentIn, awayIn []span
	// Scratch space, by zone.
	count []int32
	best  []candidate
	// top are the best of all, picks those that were chosen.
	top   []candidate
	picks []int32
}

// New returns a placer without muxes and VIPs.
func New(b Bounds) *Placer {
	return &Placer{bounds: b, byName: map[string]int32{}, zones: map[string]int{}, byKey: map[Key]int32{}}
}

// Place is one decision from scratch: where the VIPs go that were at previous.
func Place(b Bounds, muxes []Mux, vips []VIP, previous map[Key][]string) *Placer {
	p := New(b)
	for _, m := range muxes {
		p.SetMux(m)
	}
	p.vips = slices.Grow(p.vips, len(vips))
	for _, v := range vips {
		p.SetVIP(v)
		if on := previous[v.Key]; len(on) > 0 {
			p.Restore(v.Key, on)
		}
	}
	p.Step()
	return p
}

// SetMux adds a mux or changes it.
func (p *Placer) SetMux(m Mux) {
	zone := p.zoneOf(m.Zone)
	i, known := p.byName[m.Name]
	if !known {
		i = p.newMux()
		p.muxes[i] = mux{hash: hashName(m.Name), zone: zone, lane: -1}
		p.meters[i] = meter{hash: p.muxes[i].hash}
		for c := range p.muxes[i].leave {
			p.muxes[i].leave[c] = make([]int32, len(p.zones))
		}
		p.byName[m.Name] = i
	}
	x := &p.muxes[i]
	if known && x.Mux == m {
		return
	}
	if x.zone != zone {
		for _, s := range x.vips {
			p.account(&p.vips[s], -1)
		}
		old := x.zone
		x.zone = zone
		for _, s := range x.vips {
			p.account(&p.vips[s], 1)
			p.soil(s)
		}
		p.opened[old] = true
	}
	x.Mux = m
	p.read(i)
	// Whatever changed of it: there may be room now.
	p.opened[zone] = true
}

func (p *Placer) newMux() int32 {
	if n := len(p.freeMuxes); n > 0 {
		i := p.freeMuxes[n-1]
		p.freeMuxes = p.freeMuxes[:n-1]
		return i
	}
	p.muxes, p.meters = append(p.muxes, mux{}), append(p.meters, meter{})
	return int32(len(p.muxes) - 1)
}

// zoneOf returns the zone's number.
func (p *Placer) zoneOf(name string) int {
	if z, ok := p.zones[name]; ok {
		return z
	}
	z := len(p.zones)
	p.zones[name] = z
	p.recount = true
	p.opened, p.count, p.best = append(p.opened, false), append(p.count, 0), append(p.best, candidate{})
	for i := range p.muxes {
		for c := range p.muxes[i].leave {
			// Nothing is in the new zone yet.
			p.muxes[i].leave[c] = append(p.muxes[i].leave[c], int32(p.muxes[i].by[c]))
		}
	}
	return z
}

// DropMux takes a mux out with everything on it.
func (p *Placer) DropMux(name string) {
	i, ok := p.byName[name]
	if !ok {
		return
	}
	delete(p.byName, name)
	p.empty(i)
	p.muxes[i].gone, p.muxes[i].lane = true, -1
	p.freeMuxes = append(p.freeMuxes, i)
}

// SetVIP adds a VIP or changes it.
func (p *Placer) SetVIP(v VIP) {
	i, known := p.byKey[v.Key]
	if !known {
		if n := len(p.freeVIPs); n > 0 {
			i = p.freeVIPs[n-1]
			p.freeVIPs = p.freeVIPs[:n-1]
		} else {
			i = int32(len(p.vips))
			if i == int32(cap(p.vips)) {
				p.vips = slices.Grow(p.vips, len(p.vips)+1) // append would copy them more often
			}
			p.vips = append(p.vips, vip{})
		}
		x := &p.vips[i]
		*x = vip{VIP: v, hash: v.Key.hash(), used: true, on: x.on[:0], at: x.at[:0]}
		p.byKey[v.Key] = i
		p.soil(i)
		return
	}
	x := &p.vips[i]
	if x.VIP == v {
		return
	}
	p.account(x, -1)
	x.VIP = v
	p.account(x, 1)
	p.soil(i)
}

// DropVIP takes a VIP out.
func (p *Placer) DropVIP(k Key) {
	i, ok := p.byKey[k]
	if !ok {
		return
	}
	delete(p.byKey, k)
	x := &p.vips[i]
	p.account(x, -1)
	for len(x.on) > 0 {
		p.unhook(i, 0)
	}
	x.used = false
	p.goneVIPs = append(p.goneVIPs, i)
}

// Restore says where a VIP is, as a step would have put it. Muxes that are not there do not count.
func (p *Placer) Restore(k Key, muxes []string) {
	i, ok := p.byKey[k]
	if !ok {
		return
	}
	v := &p.vips[i]
	p.note(i)
	p.account(v, -1)
	for len(v.on) > 0 {
		p.unhook(i, 0)
	}
	for _, name := range muxes {
		if m, ok := p.byName[name]; ok && !slices.Contains(v.on, m) {
			p.hook(i, m)
		}
	}
	p.account(v, 1)
	v.was = slices.Sorted(slices.Values(muxes))
	p.soil(i)
}

// Muxes returns the names of the muxes of a VIP, ordered.
func (p *Placer) Muxes(k Key) []string {
	i, ok := p.byKey[k]
	if !ok {
		return nil
	}
	return p.names(&p.vips[i])
}

// names are those of the VIP's muxes, ordered.
func (p *Placer) names(v *vip) []string {
	if len(v.on) == 0 {
		return nil
	}
	out := make([]string, len(v.on))
	for i, m := range v.on {
		out[i] = p.muxes[m].Name
	}
	slices.Sort(out)
	return out
}

// Use is what is placed on a mux: VIPs, and packets per second.
func (p *Placer) Use(name string) (vips int, packets uint64) {
	i, ok := p.byName[name]
	if !ok {
		return 0, 0
	}
	return len(p.muxes[i].vips), p.muxes[i].load
}

// Problems are the VIPs that have fewer muxes than they ask for, as of the last step, ordered.
func (p *Placer) Problems() []Problem {
	var out []Problem
	muxes := len(p.present) + len(p.away)
	for _, i := range p.short {
		v := &p.vips[i]
		if !v.used || !v.short {
			continue
		}
		problem := Problem{Key: v.Key, Placed: len(v.on), Wanted: v.Replicas, Reason: Capacity, Muxes: muxes}
		if len(v.on) >= muxes {
			problem.Reason = FewMuxes
		}
		out = append(out, problem)
	}
	slices.SortFunc(out, func(a, b Problem) int { return a.Key.Compare(b.Key) })
	return out
}

// Overloaded are the muxes whose packets are past their capacity although no other has room for what they have, ordered.
func (p *Placer) Overloaded() []string {
	var out []string
	for _, list := range [][]int32{p.present, p.away} {
		for _, i := range list {
			if p.muxes[i].excess() > 0 {
				out = append(out, p.muxes[i].Name)
			}
		}
	}
	slices.Sort(out)
	return out
}

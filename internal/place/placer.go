package place

import (
	"slices"
)

// mux is a Mux with its VIPs.
type mux struct {
	Mux
	hash uint64
	zone int
	// gone: it was removed; its slot is free.
	gone bool
	// vips are the slots of VIPs on it, in no order.
	vips []int32
	// by is the number of them by measure, load the sum of their packets.
	by   [measures]int
	load uint64
	// lane is its index in Placer.lanes, -1 if no VIPs are to be placed on it.
	lane int32
	// rank orders muxes by name, as of the last step.
	rank int32
	// leave is the number of its VIPs, by measure and zone, that could move to that zone without
	// being in fewer zones. The value of its own zone is unused.
	leave [measures][]int32
}

// meter holds the fields of one mux that the choice among muxes compares, separate from the others
// so that they fill a cache line or two.
type meter struct {
	measure [measures]uint64
	// second breaks ties of measure.
	second [measures]int32
	hash   uint64
	// seen is the mark of the VIP that is being placed, for muxes that it may not use.
	seen uint64
	zone int32
	// full: it has the maximum number of VIPs.
	full bool
}

// vip is a VIP with its muxes.
type vip struct {
	VIP
	hash uint64
	used bool
	// on are slots of muxes, and at the VIP's index in the list of each; in no order.
	on, at []int32
	// noted: it is in changed, and was holds its previous muxes.
	noted bool
	was   []string
	// dirty: the next step must check it. short: it has fewer muxes than configured.
	dirty, short bool
}

// Placer assigns VIPs to muxes. Set, Drop and Restore set the inputs; Step decides. The decision
// depends on the inputs and the previous placement, not on the order of the calls.
type Placer struct {
	bounds Bounds

	muxes  []mux
	meters []meter // of muxes
	byName map[string]int32
	// freeMuxes are slots for reuse.
	freeMuxes []int32
	zones     map[string]int
	vips      []vip
	byKey     map[Key]int32
	// freeVIPs are slots for reuse, goneVIPs those that become free after the next step.
	freeVIPs, goneVIPs []int32

	// changed, dirty and short are slots of VIPs; entries may be outdated.
	changed, dirty, short []int32
	// opened is set, by zone, when a mux there got room.
	opened []bool
	// narrow is the number of VIPs with two muxes in one zone and none in another; recount: it must
	// be recounted.
	narrow  int
	recount bool
	mark    uint64

	// Set at the beginning of each step: present muxes and those that are away, all and by zone.
	present, away     []int32
	lanes             lanes
	presentIn, awayIn []span
	// Scratch space, by zone.
	count []int32
	best  []candidate
	// top are the best candidates, picks the chosen muxes.
	top   []candidate
	picks []int32
}

// New returns a placer without muxes and VIPs.
func New(b Bounds) *Placer {
	return &Placer{bounds: b, byName: map[string]int32{}, zones: map[string]int{}, byKey: map[Key]int32{}}
}

// Place returns a placer after one decision from scratch, with the VIPs at previous before it.
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

// SetMux adds or changes a mux.
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
	// Any change may have made room.
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

// zoneOf returns the zone's number, and adds the zone if it is new.
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
			// No VIP is in the new zone yet.
			p.muxes[i].leave[c] = append(p.muxes[i].leave[c], int32(p.muxes[i].by[c]))
		}
	}
	return z
}

// DropMux removes a mux and all its VIPs from it.
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

// SetVIP adds or changes a VIP.
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

// DropVIP removes a VIP.
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

// Restore sets the muxes of a VIP, as a step would have assigned them. Unknown muxes are ignored.
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

// names returns those of the VIP's muxes, ordered.
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

// Use returns the VIPs on a mux, and their packets per second.
func (p *Placer) Use(name string) (vips int, packets uint64) {
	i, ok := p.byName[name]
	if !ok {
		return 0, 0
	}
	return len(p.muxes[i].vips), p.muxes[i].load
}

// Problems returns the VIPs that have fewer muxes than configured after the last step, ordered.
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

// Overloaded returns the muxes whose packets exceed their capacity because no other mux has room
// for their VIPs, ordered.
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

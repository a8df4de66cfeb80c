package place

import "math"

// candidate is a possible mux for a VIP, with its rank: lower values are better.
type candidate struct {
	measure, tie uint64
	second       int32
	mux          int32
	ok           bool
}

// before reports whether c is better than o.
func (c *candidate) before(o *candidate) bool {
	switch {
	case !o.ok:
		return true
	case c.measure != o.measure:
		return c.measure < o.measure
	case c.second != o.second:
		return c.second < o.second
	}
	return c.tie < o.tie
}

// choose returns up to n muxes for the VIP, each with room for its share of packets: present ones
// before those that are away, then in zones without the VIP before others, then by measure. The
// result is valid until the next call.
func (p *Placer) choose(v *vip, n int, packets uint64) []int32 {
	p.shun(v)
	p.tally(v)
	p.picks = p.picks[:0]
	p.chooseFrom(p.present, p.presentIn, v, n, packets)
	p.chooseFrom(p.away, p.awayIn, v, n, packets)
	p.untally(v)
	for _, m := range p.picks {
		p.count[p.meters[m].zone] = 0
	}
	return p.picks
}

// shun excludes the VIP's muxes from the choice.
func (p *Placer) shun(v *vip) {
	p.mark++
	for _, m := range v.on {
		p.meters[m].seen = p.mark
	}
}

func (p *Placer) pick(i int32) {
	m := &p.meters[i]
	m.seen = p.mark
	p.count[m.zone]++
	p.picks = append(p.picks, i)
}

// chooseFrom adds to p.picks until it has n elements. p.count is the number of the VIP's muxes in
// each zone.
func (p *Placer) chooseFrom(from []int32, in []span, v *vip, n int, packets uint64) {
	if len(from) == 0 || len(p.picks) == n {
		return
	}
	if len(p.zones) > 1 {
		p.chooseZones(in, v, n, packets)
	}
	for _, c := range p.least(from, v, n-len(p.picks), packets) {
		p.pick(c.mux)
	}
}

// chooseZones adds the best mux of each zone without the VIP, the best of these first.
func (p *Placer) chooseZones(in []span, v *vip, n int, packets uint64) {
	for z, zone := range in {
		p.best[z].ok = false
		if p.count[z] == 0 {
			p.best[z] = p.first(zone, v, packets)
		}
	}
	for len(p.picks) < n {
		var best *candidate
		for z := range p.best {
			if c := &p.best[z]; c.ok && (best == nil || c.before(best)) {
				best = c
			}
		}
		if best == nil {
			return
		}
		best.ok = false
		p.pick(best.mux)
	}
}

// first returns the best of some muxes.
func (p *Placer) first(of span, v *vip, packets uint64) candidate {
	best := candidate{measure: math.MaxUint64, tie: math.MaxUint64}
	measures, hashes := p.lanes.measures[v.By][of.from:of.to], p.lanes.hashes[of.from:of.to]
	// ByVIPs has no value between measure and tie.
	plain := v.By == ByVIPs
	for k, measure := range measures {
		if measure > best.measure {
			continue
		}
		tie := tie(v.hash, hashes[k])
		if plain && measure == best.measure && tie >= best.tie && best.ok {
			continue
		}
		i := p.lanes.muxes[of.from+int32(k)]
		m := &p.meters[i]
		if m.full || m.seen == p.mark {
			continue
		}
		c := candidate{measure: measure, second: m.second[v.By], tie: tie, mux: i, ok: true}
		if c.before(&best) && p.muxes[i].carries(packets) {
			best = c
		}
	}
	return best
}

// least returns the n best muxes, best first, or fewer if there are fewer. The result is valid
// until the next call.
func (p *Placer) least(from []int32, v *vip, n int, packets uint64) []candidate {
	top := p.top[:0]
	if n <= 0 {
		return top
	}
	worst := candidate{measure: math.MaxUint64}
	for _, i := range from {
		m := &p.meters[i]
		if m.measure[v.By] > worst.measure || m.full || m.seen == p.mark {
			continue
		}
		c := candidate{measure: m.measure[v.By], second: m.second[v.By], tie: tie(v.hash, m.hash), mux: i, ok: true}
		if !c.before(&worst) || !p.muxes[i].carries(packets) {
			continue
		}
		if len(top) < n {
			top = append(top, c)
		}
		k := len(top) - 1
		for ; k > 0 && c.before(&top[k-1]); k-- {
			top[k] = top[k-1]
		}
		top[k] = c
		if len(top) == n {
			worst = top[n-1]
		}
	}
	p.top = top
	return top
}

// candidate evaluates one mux for a VIP.
func (p *Placer) candidate(v *vip, i int32, packets uint64) candidate {
	m := &p.meters[i]
	if m.full || m.seen == p.mark || !p.muxes[i].carries(packets) {
		return candidate{}
	}
	return candidate{measure: m.measure[v.By], second: m.second[v.By], tie: tie(v.hash, m.hash), mux: i, ok: true}
}

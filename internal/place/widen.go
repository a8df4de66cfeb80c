package place

import "slices"

// widen moves muxes of VIPs that have two in one zone to zones where they have none, and reports
// whether it moved any. It checks those of the queue, and all VIPs when a zone got room.
func (p *Placer) widen(queue []int32) (moved bool) {
	if len(p.zones) < 2 || p.narrow == 0 {
		return false
	}
	list := slices.Clone(queue)
	p.sortByHash(list, 0)
	if slices.Contains(p.opened, true) {
		list = p.narrowOnes()
	}
	clear(p.opened)
	for _, i := range list {
		for p.widenOne(i) {
			moved = true
		}
	}
	return moved
}

// narrowOnes returns all VIPs with two muxes in one zone and none in another, in the order of the
// hash.
func (p *Placer) narrowOnes() []int32 {
	var out []int32
	for i := range p.vips {
		if v := &p.vips[i]; v.used && len(v.on) > 1 {
			if p.tally(v) {
				out = append(out, int32(i))
			}
			p.untally(v)
		}
	}
	p.sortByHash(out, 0)
	return out
}

// widenOne moves one mux of a VIP to a zone where it has none, if it has two in one and there is
// room.
func (p *Placer) widenOne(i int32) bool {
	v := &p.vips[i]
	if len(v.on) < 2 {
		return false
	}
	var to candidate
	if p.tally(v) {
		p.shun(v)
		for z, zone := range p.presentIn {
			if p.count[z] == 0 {
				if c := p.first(zone, v, v.share()); c.ok && c.before(&to) {
					to = c
				}
			}
		}
	}
	p.untally(v)
	if to.ok {
		p.move(i, p.spare(v), to.mux)
	}
	return to.ok
}

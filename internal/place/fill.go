package place

// fill gives VIPs the muxes that they lack, and lists those that still lack some.
func (p *Placer) fill(queue []int32) {
	if p.scarce(queue) {
		for _, i := range queue {
			if len(p.vips[i].on) == 0 {
				p.fillOne(i, 1)
			}
		}
	}
	for _, i := range p.short {
		p.vips[i].short = false
	}
	for {
		var short []int32
		lighter := false
		for _, i := range queue {
			v := &p.vips[i]
			had := len(v.on)
			p.fillOne(i, v.Replicas)
			lighter = lighter || v.Load > 0 && had > 0 && len(v.on) > had
			if v.short = len(v.on) < v.Replicas; v.short {
				short = append(short, i)
			}
		}
		p.short = short
		if !lighter || len(short) == 0 {
			return
		}
		// Additional muxes take a part of the load from the previous ones, which may have room now.
		queue = short
	}
}

// scarce reports whether the VIPs lack more muxes than there is room for.
func (p *Placer) scarce(queue []int32) bool {
	room := uint64(0)
	for _, list := range [][]int32{p.present, p.away} {
		for _, i := range list {
			m := &p.muxes[i]
			if m.VIPs == 0 {
				return false
			}
			if !m.full() {
				room += uint64(m.VIPs) - uint64(len(m.vips)) - uint64(m.BaseVIPs)
			}
		}
	}
	for _, i := range queue {
		v := &p.vips[i]
		lacks := uint64(max(0, v.Replicas-len(v.on)))
		if lacks > room {
			return true
		}
		room -= lacks
	}
	return false
}

// fillOne gives a VIP up to n muxes. With fewer muxes each carries more, so a mux with room for a
// third of a load may have none for a half.
func (p *Placer) fillOne(i int32, n int) {
	v := &p.vips[i]
	n = min(n, len(p.present)+len(p.away))
	for n > len(v.on) {
		lacks := n - len(v.on)
		picks := p.choose(v, lacks, share(v.Load, n))
		if len(picks) == lacks || v.Load == 0 {
			if len(picks) > 0 {
				p.add(i, picks)
			}
			return
		}
		n = len(v.on) + len(picks)
	}
}

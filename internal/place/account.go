package place

import "slices"

// share returns the part of a load for each of n muxes, rounded up.
func share(load uint64, n int) uint64 {
	if n <= 1 {
		return load
	}
	return load/uint64(n) + min(load%uint64(n), 1)
}

// share returns the part of the load for each of the VIP's muxes.
func (v *vip) share() uint64 { return share(v.Load, len(v.on)) }

// full reports whether the mux has the maximum number of VIPs.
func (m *mux) full() bool {
	return m.VIPs > 0 && uint64(len(m.vips))+uint64(m.BaseVIPs) >= uint64(m.VIPs)
}

// fits reports whether the mux can take one more VIP with that many packets.
func (m *mux) fits(packets uint64) bool { return !m.full() && m.carries(packets) }

// carries reports whether the mux has room for packets.
func (m *mux) carries(packets uint64) bool {
	if m.Packets == 0 || packets == 0 {
		return true
	}
	used := saturate(m.load, m.BasePackets)
	return used <= m.Packets && packets <= m.Packets-used
}

// excess returns the packets above its capacity.
func (m *mux) excess() uint64 {
	used := saturate(m.load, m.BasePackets)
	if m.Packets == 0 || used <= m.Packets {
		return 0
	}
	return used - m.Packets
}

// measure returns the quantity that is to be even among muxes.
func (m *mux) measure(by By) uint64 {
	if by == ByLoad {
		return saturate(m.load, m.BasePackets)
	}
	return uint64(m.by[ByVIPs])
}

// saturate adds without overflow.
func saturate(a, b uint64) uint64 {
	if a > ^uint64(0)-b {
		return ^uint64(0)
	}
	return a + b
}

// read updates the mux's meter.
func (p *Placer) read(i int32) {
	m, t := &p.muxes[i], &p.meters[i]
	t.measure = [measures]uint64{ByVIPs: m.measure(ByVIPs), ByLoad: m.measure(ByLoad)}
	t.second[ByLoad] = int32(len(m.vips))
	t.zone, t.full = int32(m.zone), m.full()
	if m.lane >= 0 {
		p.lanes.set(m.lane, t)
	}
}

// account adds the VIP to the sums of its muxes, or subtracts it. Changes of its muxes, measure or
// load must be made between a subtraction and an addition.
func (p *Placer) account(v *vip, sign int) {
	packets := v.share()
	for _, i := range v.on {
		m := &p.muxes[i]
		m.by[v.By] += sign
		if sign > 0 {
			m.load += packets
		} else {
			m.load -= packets
			if m.Packets > 0 && packets > 0 {
				p.opened[m.zone] = true
			}
		}
		p.read(i)
	}
	if len(p.zones) < 2 {
		return
	}
	if p.tally(v) {
		p.narrow += sign
	}
	for _, i := range v.on {
		m := &p.muxes[i]
		several := p.count[m.zone] > 1
		leave := m.leave[v.By]
		for z := range leave {
			if several || p.count[z] == 0 {
				leave[z] += int32(sign)
			}
		}
	}
	p.untally(v)
}

// tally sets p.count to the number of the VIP's muxes in each zone, and reports whether it has two
// in one zone and none in another.
func (p *Placer) tally(v *vip) (narrow bool) {
	zones := 0
	for _, i := range v.on {
		z := p.muxes[i].zone
		if p.count[z] == 0 {
			zones++
		}
		p.count[z]++
	}
	return zones < len(v.on) && zones < len(p.zones)
}

// untally clears p.count for the VIP.
func (p *Placer) untally(v *vip) {
	for _, i := range v.on {
		p.count[p.muxes[i].zone] = 0
	}
}

// soil makes the next step check the VIP.
func (p *Placer) soil(i int32) {
	if v := &p.vips[i]; !v.dirty {
		v.dirty = true
		p.dirty = append(p.dirty, i)
	}
}

// note stores the VIP's muxes before its first change since the last step.
func (p *Placer) note(i int32) {
	if v := &p.vips[i]; !v.noted {
		v.noted, v.was = true, p.names(v)
		p.changed = append(p.changed, i)
	}
}

// hook adds the VIP to a mux, without changing the sums.
func (p *Placer) hook(i, mux int32) {
	p.note(i)
	v, m := &p.vips[i], &p.muxes[mux]
	v.on, v.at = append(v.on, mux), append(v.at, int32(len(m.vips)))
	m.vips = append(m.vips, i)
	p.read(mux)
}

// unhook removes the VIP from the k-th of its muxes, without changing the sums.
func (p *Placer) unhook(i int32, k int) {
	p.note(i)
	v := &p.vips[i]
	slot, at := v.on[k], v.at[k]
	m := &p.muxes[slot]
	if m.VIPs > 0 {
		p.opened[m.zone] = true
	}
	last := len(m.vips) - 1
	if moved := m.vips[last]; int(at) != last {
		m.vips[at] = moved
		o := &p.vips[moved]
		o.at[slices.Index(o.on, slot)] = at
	}
	m.vips = m.vips[:last]
	p.read(slot)
	last = len(v.on) - 1
	v.on[k], v.at[k] = v.on[last], v.at[last]
	v.on, v.at = v.on[:last], v.at[:last]
}

// add adds the VIP to more muxes.
func (p *Placer) add(i int32, muxes []int32) {
	v := &p.vips[i]
	p.account(v, -1)
	if n := len(v.on) + len(muxes); n > cap(v.on) {
		both := make([]int32, 2*n)
		v.on, v.at = append(both[:0:n], v.on...), append(both[n:n], v.at...)
	}
	for _, m := range muxes {
		p.hook(i, m)
	}
	p.account(v, 1)
}

// take removes the VIP from a mux.
func (p *Placer) take(i, mux int32) {
	v := &p.vips[i]
	p.account(v, -1)
	p.unhook(i, slices.Index(v.on, mux))
	p.account(v, 1)
	p.soil(i)
}

// move moves the VIP from one mux to another.
func (p *Placer) move(i, from, to int32) {
	v := &p.vips[i]
	p.account(v, -1)
	p.unhook(i, slices.Index(v.on, from))
	p.hook(i, to)
	p.account(v, 1)
}

// empty removes all VIPs from a mux.
func (p *Placer) empty(mux int32) {
	for m := &p.muxes[mux]; len(m.vips) > 0; {
		p.take(m.vips[len(m.vips)-1], mux)
	}
}

package place

import (
	"cmp"
	"slices"
)

// maxRounds limits how often a step starts over because its moves made room.
const maxRounds = 8

// Step decides and returns the changes since the last step, ordered by a hash of the VIP, without
// VIPs that were removed.
func (p *Placer) Step() []Change {
	p.open()
	p.evict()
	for range maxRounds {
		queue := p.queue()
		p.fill(queue)
		again := p.makeRoom()
		p.relieve()
		again = p.widen(queue) || again
		again = p.even(ByVIPs) || again
		again = p.even(ByLoad) || again
		if !again || !p.wanting() {
			break
		}
	}
	clear(p.opened)
	for _, i := range p.dirty {
		p.vips[i].dirty = false
	}
	p.dirty = p.dirty[:0]
	return p.changes()
}

// open lists the muxes that may have VIPs, and recounts narrow after a new zone.
func (p *Placer) open() {
	p.present, p.away = p.present[:0], p.away[:0]
	for _, i := range p.ordered() {
		m := &p.muxes[i]
		m.lane = -1
		switch {
		case m.Drain || m.Down:
		case m.Away:
			p.away = append(p.away, i)
		default:
			p.present = append(p.present, i)
		}
	}
	p.lanes.clear()
	p.presentIn, p.awayIn = p.layOut(p.present), p.layOut(p.away)
	p.rankNames()
	if p.recount {
		p.narrow, p.recount = 0, false
		for i := range p.vips {
			if v := &p.vips[i]; len(v.on) > 1 && len(p.zones) > 1 {
				if p.tally(v) {
					p.narrow++
				}
				p.untally(v)
			}
		}
	}
}

// ordered returns all muxes in the order of their hashes.
func (p *Placer) ordered() []int32 {
	var out []int32
	for i := range p.muxes {
		if !p.muxes[i].gone {
			out = append(out, int32(i))
		}
	}
	slices.SortFunc(out, func(a, b int32) int {
		x, y := &p.muxes[a], &p.muxes[b]
		return cmp.Or(cmp.Compare(x.hash, y.hash), cmp.Compare(x.Name, y.Name))
	})
	return out
}

// evict removes VIPs from muxes as the first rules require.
func (p *Placer) evict() {
	order := p.ordered()
	for _, i := range order {
		if m := &p.muxes[i]; m.Drain || m.Down {
			p.empty(i)
		}
	}
	var many []int32
	for _, i := range p.dirty {
		if v := &p.vips[i]; v.used && len(v.on) > max(v.Replicas, 0) {
			many = append(many, i)
		}
	}
	p.sortByHash(many, 0)
	for _, i := range many {
		for v := &p.vips[i]; len(v.on) > max(v.Replicas, 0); {
			p.take(i, p.spare(v))
		}
	}
	for _, i := range order {
		if m := &p.muxes[i]; m.VIPs > 0 && uint64(len(m.vips))+uint64(m.BaseVIPs) > uint64(m.VIPs) {
			p.evictSome(i)
		}
	}
}

// evictSome removes VIPs above the mux's maximum number, from VIPs with the most other muxes first.
func (p *Placer) evictSome(mux int32) {
	m := &p.muxes[mux]
	keep := int(int64(m.VIPs) - min(int64(m.VIPs), int64(m.BaseVIPs)))
	list := slices.Clone(m.vips)
	slices.SortFunc(list, func(a, b int32) int {
		x, y := &p.vips[a], &p.vips[b]
		return cmp.Or(cmp.Compare(len(y.on), len(x.on)), cmp.Compare(tie(x.hash, m.hash), tie(y.hash, m.hash)), x.Key.Compare(y.Key))
	})
	for _, i := range list[:len(list)-keep] {
		p.take(i, mux)
	}
}

// spare returns the mux that a VIP with too many muxes loses: one of several in a zone first, then
// the fullest.
func (p *Placer) spare(v *vip) int32 {
	p.tally(v)
	defer p.untally(v)
	return slices.MaxFunc(v.on, func(a, b int32) int {
		x, y := &p.muxes[a], &p.muxes[b]
		return cmp.Or(
			cmp.Compare(min(p.count[x.zone], 2), min(p.count[y.zone], 2)),
			cmp.Compare(x.measure(v.By), y.measure(v.By)), cmp.Compare(tie(v.hash, x.hash), tie(v.hash, y.hash)),
		)
	})
}

// turn is a VIP's position in the order of service.
type turn struct {
	class int // lower ones come first
	load  uint64
	hash  uint64
	vip   int32
}

// queue returns the VIPs that may lack muxes, changed ones and short ones, in the order of service:
// without any mux first, then by number before by load, heavy ones first.
func (p *Placer) queue() []int32 {
	var turns []turn
	add := func(i int32) {
		v := &p.vips[i]
		if !v.used || v.Replicas <= 0 {
			return
		}
		t := turn{class: int(v.By), hash: v.hash, vip: i}
		if len(v.on) > 0 {
			t.class += int(measures)
		}
		if v.By == ByLoad {
			t.load = v.Load
		}
		turns = append(turns, t)
	}
	for _, i := range p.dirty {
		add(i)
	}
	for _, i := range p.short {
		if !p.vips[i].dirty {
			add(i)
		}
	}
	slices.SortFunc(turns, func(a, b turn) int {
		switch {
		case a.class != b.class:
			return cmp.Compare(a.class, b.class)
		case a.load != b.load:
			return cmp.Compare(b.load, a.load)
		case a.hash != b.hash:
			return cmp.Compare(a.hash, b.hash)
		}
		return p.vips[a.vip].Key.Compare(p.vips[b.vip].Key)
	})
	out := make([]int32, len(turns))
	for i, t := range turns {
		out[i] = t.vip
	}
	return out
}

// wanting reports whether another round may help: a VIP is short or narrow and some zone got room.
func (p *Placer) wanting() bool {
	return slices.Contains(p.opened, true) && (len(p.short) > 0 || p.narrow > 0)
}

// changes lists the VIPs whose muxes changed.
func (p *Placer) changes() []Change {
	used := slices.DeleteFunc(p.changed, func(i int32) bool {
		p.vips[i].noted = false
		return !p.vips[i].used
	})
	p.sortByHash(used, 0)
	if len(used) == 0 {
		p.changed = p.changed[:0]
		p.freeVIPs, p.goneVIPs = append(p.freeVIPs, p.goneVIPs...), p.goneVIPs[:0]
		return nil
	}
	count := 0
	for _, i := range used {
		count += len(p.vips[i].on)
	}
	out, names := make([]Change, 0, len(used)), make([]string, 0, count)
	for _, i := range used {
		v := &p.vips[i]
		from := len(names)
		names = p.appendNames(names, v)
		if now := names[from:len(names):len(names)]; slices.Equal(v.was, now) {
			names = names[:from]
		} else {
			out = append(out, Change{Key: v.Key, Was: v.was, Now: now})
		}
		v.was = nil
	}
	p.changed = p.changed[:0]
	p.freeVIPs, p.goneVIPs = append(p.freeVIPs, p.goneVIPs...), p.goneVIPs[:0]
	return out
}

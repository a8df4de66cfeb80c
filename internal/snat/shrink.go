package snat

import (
	"cmp"
	"slices"
	"time"
)

// reclaimPace is the minimum time between two Reclaim rounds for the DIPs of a VIP.
const reclaimPace = 10 * time.Second

// limit returns the maximum number of ranges of a DIP of a VIP.
func (d *Desk) limit(v *vip) int {
	if n := v.conf.PerDIP; n > 0 {
		return n
	}
	return d.rules.PerDIP
}

// Shrink requests ranges back from DIPs that exceed their own limit or that of their tenant. Call
// it after the allocator is configured. A host that lost the request syncs, and then receives it
// again.
func (d *Desk) Shrink() {
	byTenant, most := map[*tenant][]*dip{}, map[*tenant]int{}
	for _, v := range d.vips {
		for _, k := range v.dips {
			if k == nil || k.removed {
				continue
			}
			k.keep = min(len(k.ranges), d.limit(v))
			byTenant[v.tenant] = append(byTenant[v.tenant], k)
			if n := v.conf.PerTenant; n > 0 {
				most[v.tenant] = n
			}
		}
	}
	for t, dips := range byTenant {
		if n := most[t]; n > 0 {
			slices.SortFunc(dips, func(a, b *dip) int { return cmp.Or(a.vip.name.Compare(b.vip.name), a.holder.DIP.Compare(b.holder.DIP)) })
			level(dips, n)
		}
		for _, k := range dips {
			if k.shrinks = k.keep < len(k.ranges); k.shrinks {
				d.say(Answer{Holder: k.holder, Kind: Shrink, Keep: k.keep})
			}
		}
	}
}

// Release takes all but keep ranges back from a DIP, and returns their number. Without force its
// host is requested to return them: unused ranges soon, others when their connections have ended.
// With force they are taken immediately, and connections on their ports break. false: the DIP does
// not belong to the VIP.
func (d *Desk) Release(h Holder, keep int, force bool, now time.Time) (ranges int, ok bool) {
	k := d.known(h)
	if k == nil {
		return 0, false
	}
	if len(k.ranges) <= keep {
		return 0, true
	}
	beyond := slices.Clone(k.ranges[keep:])
	if force {
		d.Give(h, beyond, now)
		return len(beyond), true
	}
	if !k.shrinks || k.keep > keep {
		k.shrinks, k.keep = true, keep
	}
	d.say(Answer{Holder: h, Kind: Shrink, Keep: k.keep})
	return len(beyond), true
}

// level lowers the sum of the DIPs' keep to at most most: those that keep the most are lowered
// first.
func level(dips []*dip, most int) {
	sum, highest := 0, 0
	for _, k := range dips {
		sum, highest = sum+k.keep, max(highest, k.keep)
	}
	if sum <= most {
		return
	}
	under := func(at int) (sum int) {
		for _, k := range dips {
			sum += min(k.keep, at)
		}
		return sum
	}
	// Find the highest level at which the sum fits.
	low, high := 0, highest
	for low < high {
		if middle := (low + high + 1) / 2; under(middle) <= most {
			low = middle
		} else {
			high = middle - 1
		}
	}
	at := low
	left := most - under(at)
	for _, k := range dips {
		switch {
		case k.keep <= at:
		case left > 0:
			k.keep, left = at+1, left-1
		default:
			k.keep = at
		}
	}
}

// reclaim requests unused ranges from the other DIPs of an exhausted VIP, at most once per
// reclaimPace.
func (d *Desk) reclaim(k *dip, now time.Time) {
	v := k.vip
	if !v.reclaimed.IsZero() && now.Sub(v.reclaimed) < reclaimPace {
		return
	}
	v.reclaimed = now
	for _, other := range v.dips {
		if other != nil && other != k && !other.removed && len(other.ranges) > 0 {
			d.say(Answer{Holder: other.holder, Kind: Reclaim})
		}
	}
}

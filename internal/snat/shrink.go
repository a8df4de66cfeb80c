package snat

import (
	"cmp"
	"slices"
	"time"
)

// reclaimPace is the least time between two requests to the DIPs of a VIP to give back unused ranges.
const reclaimPace = 10 * time.Second

// limit is how many ranges a DIP of a VIP may have.
func (d *Desk) limit(v *vip) int {
	if n := v.conf.PerDIP; n > 0 {
		return n
	}
	return d.rules.PerDIP
}

// Shrink asks DIPs that have more ranges than they may, or than their tenants may, to give back those beyond. It is to be called when the desk is
// configured. A host that does not know it asks for everything, and is asked again then.
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

// Release takes all but keep ranges back from a DIP, and returns how many. Without force its host is asked: unused ranges go back soon, others when
// their connections have ended. With force they are the DIP's no more, and its connections with their ports break. false: the DIP is none of the
// VIP's.
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

// level lowers what DIPs keep to at most so many ranges together: those that have most give first.
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
	// The highest level at which all fits.
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

// reclaim asks the other DIPs of a VIP without free ranges to give back those that they do not use, at most once in reclaimPace.
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

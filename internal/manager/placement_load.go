package manager

import (
	"net/netip"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// loadSpan is the period over which packets are counted. It is longer than a burst and shorter
	// than a day's rise.
	loadSpan = 30 * time.Second
	// loadChange is the minimum change of a load that counts, in percent, and loadFloor that in
	// packets per second, because loads are never constant.
	loadChange = 20
	loadFloor  = 100
)

// loads holds the packets per second of VIPs and by mux, from the muxes' counters.
type loads struct {
	at time.Time
	// counted holds the packets by mux and VIP at the time at.
	counted map[string]map[string]uint64
	// told holds the loads that the placer has.
	told map[place.Key]uint64
}

func newLoads() loads {
	return loads{counted: map[string]map[string]uint64{}, told: map[place.Key]uint64{}}
}

// readLoads passes changed loads to the placer, if any VIP or mux depends on them.
func (p *placement) readLoads(now time.Time) {
	if !p.weighs() {
		clear(p.loads.counted)
		return
	}
	l := &p.loads
	elapsed := now.Sub(l.at)
	if len(l.counted) > 0 && elapsed < loadSpan {
		return
	}
	total := map[string]uint64{} // by VIP
	byMux := map[string]map[string]uint64{}
	for name, s := range p.seen {
		if !s.connected() {
			delete(l.counted, name)
			continue
		}
		counted := packetsOf(s.status)
		rates := map[string]uint64{}
		for vip, n := range counted {
			// Counters restart with the tables.
			if before, ok := l.counted[name][vip]; ok && n >= before {
				rates[vip] = uint64(float64(n-before) / elapsed.Seconds())
				total[vip] += rates[vip]
			}
		}
		l.counted[name], byMux[name] = counted, rates
	}
	l.at = now
	keys := make(map[string]place.Key, len(total))
	for text, rate := range total {
		vip, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		key := plan.VIPKey(vip)
		keys[text] = key
		if w := p.vips[key]; w.Replicas > 0 && differs(l.told[key], rate) {
			l.told[key] = rate
			w.Load = rate
			p.vips[key] = w
			p.placer.SetVIP(w.VIP)
			p.moved = true
		}
	}
	for name, rates := range byMux {
		p.base(name, rates, keys)
	}
}

// base passes the packets of VIPs that are on every mux to the placer.
func (p *placement) base(mux string, rates map[string]uint64, keys map[string]place.Key) {
	x, ok := p.muxes[mux]
	if !ok {
		return
	}
	var base uint64
	for text, rate := range rates {
		if w, ok := p.vips[keys[text]]; ok && w.Replicas == 0 {
			base += rate
		}
	}
	if differs(x.BasePackets, base) {
		x.BasePackets = base
		p.setMux(x)
	}
}

// weighs reports whether any placement depends on packets.
func (p *placement) weighs() bool {
	if p.byLoad > 0 {
		return true
	}
	for _, x := range p.muxes {
		if x.Packets > 0 {
			return true
		}
	}
	return false
}

// differs reports whether a load changed enough to count.
func differs(told, now uint64) bool {
	d := max(told, now) - min(told, now)
	return d >= loadFloor && d*100 > told*loadChange
}

// packetsOf returns the packets that a mux counted, by VIP: of endpoints' members, and replies to
// connections that servers opened.
func packetsOf(status *apiv1.NodeStatus) map[string]uint64 {
	out := map[string]uint64{}
	for _, m := range status.GetMembers() {
		out[m.GetVip()] += m.GetPackets()
	}
	for _, a := range status.GetAnswers() {
		out[a.GetVip()] += a.GetPackets()
	}
	return out
}

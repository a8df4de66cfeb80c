package manager

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
)

// seenMux is what a mux said last. status is nil when it said nothing as long as this manager is up.
type seenMux struct {
	status *apiv1.NodeStatus
	// routes are those that it advertises, by prefix; nil until somebody asks.
	routes map[string]bool
}

func (s *seenMux) connected() bool { return s.status.GetConnected() }

// advertises tells whether the mux said that it advertises a VIP.
func (s *seenMux) advertises(vip netip.Addr) bool {
	if s.routes == nil {
		s.routes = make(map[string]bool, len(s.status.GetRoutes()))
		for _, r := range s.status.GetRoutes() {
			if r.GetAdvertised() {
				s.routes[r.GetPrefix()] = true
			}
		}
	}
	return s.routes[netip.PrefixFrom(vip, vip.BitLen()).String()]
}

// newest are the last words of nodes; without a status of those that said nothing.
func (r *reports) newest(names []string) []heard {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]heard, len(names))
	for i, name := range names {
		out[i] = r.heard[name]
	}
	return out
}

// muxNodes are the Node objects of muxes.
func (v *view) muxNodes() []*lb.Node {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.Collect(maps.Values(v.muxes))
}

// sameList tells whether two lists, which are never modified, are one.
func sameList[E any](a, b []E) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// readMuxes tells the placer of muxes that came, went or changed.
func (p *placement) readMuxes(now time.Time) {
	nodes := p.m.view.muxNodes()
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	present := make(map[string]bool, len(nodes))
	for i, said := range p.m.reports.newest(names) {
		n, status := nodes[i], said.status
		present[n.Name] = true
		if s := p.seen[n.Name]; s == nil || s.status != status {
			now := &seenMux{status: status}
			if s != nil && sameList(s.status.GetRoutes(), status.GetRoutes()) {
				now.routes = s.routes
			}
			p.seen[n.Name] = now
		}
		x := place.Mux{
			Name: n.Name, Zone: n.Zone, VIPs: n.Capacity.VIPs, Packets: n.Capacity.Packets,
			// Whoever drains a mux on its machine means what an operator of the cluster means.
			Drain: n.Drain || status.GetDrained(),
			Away:  !status.GetConnected(),
		}
		x.Down = x.Away && p.replaceable(said, now)
		x.BaseVIPs, x.BasePackets = uint32(p.every), p.muxes[n.Name].BasePackets
		p.setMux(x)
	}
	for name := range p.muxes {
		if !present[name] {
			p.placer.DropMux(name)
			delete(p.muxes, name)
			delete(p.seen, name)
			p.moved = true
		}
	}
}

// replaceable tells whether a mux was away for so long that others get its VIPs. What it did before the term is not
// known.
func (p *placement) replaceable(said heard, now time.Time) bool {
	since := p.began
	if said.at.After(since) {
		since = said.at
	}
	return p.m.o.ReplaceAfter > 0 && now.Sub(since) >= p.m.o.ReplaceAfter
}

func (p *placement) setMux(x place.Mux) {
	if p.muxes[x.Name] != x {
		p.placer.SetMux(x)
		p.muxes[x.Name] = x
		p.moved = true
	}
}

// settleMuxes tells the placer of how many VIPs are on every mux.
func (p *placement) settleMuxes() {
	for _, x := range p.muxes {
		x.BaseVIPs = uint32(p.every)
		p.setMux(x)
	}
}

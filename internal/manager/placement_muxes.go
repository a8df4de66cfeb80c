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

// seenMux is the last report of a mux. status is nil if it sent none since this manager started.
type seenMux struct {
	status *apiv1.NodeStatus
	// routes holds the advertised prefixes; nil until the first lookup.
	routes map[string]bool
}

func (s *seenMux) connected() bool { return s.status.GetConnected() }

// advertises reports whether the mux advertises a VIP according to its last report.
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

// newest returns the last reports of nodes. Those of nodes that sent none have no status.
func (r *reports) newest(names []string) []heard {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]heard, len(names))
	for i, name := range names {
		out[i] = r.heard[name]
	}
	return out
}

// muxNodes returns the Node objects of muxes.
func (v *view) muxNodes() []*lb.Node {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.Collect(maps.Values(v.muxes))
}

// sameList reports whether two lists, which are never modified, are the same one.
func sameList[E any](a, b []E) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// readMuxes passes added, removed and changed muxes to the placer.
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
			// A drain on the mux's machine counts like one by an operator of the cluster.
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

// replaceable reports whether a mux has been disconnected for so long that others get its VIPs. Its
// state before the term is unknown.
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

// settleMuxes passes the number of VIPs on every mux to the placer.
func (p *placement) settleMuxes() {
	for _, x := range p.muxes {
		x.BaseVIPs = uint32(p.every)
		p.setMux(x)
	}
}

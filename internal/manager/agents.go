package manager

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// With rewrite host, the host agent on a backend's machine decapsulates and translates packets.
// Without an agent every packet is lost although the server is healthy. The manager considers a
// host address to have an agent if a Node of role host has the address and has connected.

// maxWarnings bounds the warnings of one response.
const maxWarnings = 20

// needsAgent reports whether the packets of an endpoint's backends pass a host agent.
func needsAgent(ep *lb.Endpoint) bool { return ep.Rewrite == lb.RewriteHost && !ep.Translated() }

// noAgent returns why a host address has no agent: hosts are the Nodes of role host with the
// address, and connected reports whether one has been connected since this manager started. It
// returns "" for an address with an agent, also while that agent restarts, because its programs
// stay attached.
func noAgent(host netip.Addr, hosts []string, connected func(node string) bool) string {
	switch {
	case len(hosts) == 0:
		return fmt.Sprintf("no agent at %s: no Node of role host has the address", host)
	case !slices.ContainsFunc(hosts, connected):
		return fmt.Sprintf("no agent at %s: the Node with the address has not connected", host)
	}
	return ""
}

// seen reports whether a node has had a stream since this manager started.
func (r *reports) seen(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard[node].status != nil
}

// hostNodesLocked returns the Nodes of role host that have an address.
func (v *view) hostNodesLocked(addr netip.Addr) (out []string) {
	for _, name := range v.wanted.NodesAt(addr) {
		if n := v.state.Nodes[name]; n != nil && n.Role == lb.RoleHost {
			out = append(out, name)
		}
	}
	return out
}

// snatServicesLocked returns the names of services by the host addresses in their snat.
func (v *view) snatServicesLocked() map[netip.Addr]map[string]bool {
	out := map[netip.Addr]map[string]bool{}
	for name := range v.snat.services {
		svc := v.state.Services[name]
		if svc == nil {
			continue
		}
		for _, server := range svc.SNAT {
			switch {
			case !server.Host.IsValid():
			case out[server.Host] == nil:
				out[server.Host] = map[string]bool{name: true}
			default:
				out[server.Host][name] = true
			}
		}
	}
	return out
}

// absentLocked returns the host addresses without an agent that have bindings or that snat names,
// and why each has none.
func (v *view) absentLocked(connected func(node string) bool) map[netip.Addr]string {
	var out map[netip.Addr]string
	hosts := v.snatServicesLocked()
	for host := range v.items.byHost {
		hosts[host] = nil
	}
	for host := range hosts {
		if why := noAgent(host, v.hostNodesLocked(host), connected); why != "" {
			if out == nil {
				out = map[netip.Addr]string{}
			}
			out[host] = why
		}
	}
	return out
}

// unserved maps the backends of one endpoint without a host agent to the reason.
type unserved map[lb.BackendKey]string

// unservedLocked returns the backends of an endpoint that are on absent hosts.
func (v *view) unservedLocked(key lb.EndpointKey, ep *lb.Endpoint, absent map[netip.Addr]string) unserved {
	if len(absent) == 0 || !needsAgent(ep) {
		return nil
	}
	var out unserved
	for i := range ep.Backends {
		b := &ep.Backends[i]
		dip, ok := b.DIP(key.VIP)
		if why := absent[b.Host]; ok && why != "" {
			if out == nil {
				out = unserved{}
			}
			out[lb.BackendKey{DIP: dip, Port: b.Port}] = why
		}
	}
	return out
}

// hostNodes returns the Nodes of role host that have an address in the resulting state.
func (w *write) hostNodes(addr netip.Addr) []string {
	return slices.DeleteFunc(w.nodesAt(addr), func(name string) bool {
		n, ok := w.result(ref{lb.KindNode, name}).(*lb.Node)
		return !ok || n.Role != lb.RoleHost
	})
}

// result returns an object of the resulting state, or nil if it does not exist there.
func (w *write) result(r ref) lb.Object {
	if o, edited := w.edited[r]; edited {
		return o
	}
	if rec := w.base.record(r); rec != nil {
		return rec.obj
	}
	return nil
}

// warnings returns a sentence for each Node of the request whose capacity leaves VIPs unbound, then
// one for each service and host address whose backends have no agent, then one for each service
// that takes datagrams for which its tunnels are too narrow.
func (w *write) warnings(opinions []opinion, connected func(node string) bool) (out []string) {
	more := 0
	var unbound, narrow []string
	networks := w.networks()
	for _, op := range opinions {
		if n, ok := w.result(refOf(op.Object)).(*lb.Node); ok {
			if text := w.unbound(n); text != "" {
				unbound = append(unbound, text)
			}
		}
		svc, ok := w.result(refOf(op.Object)).(*lb.Service)
		if !ok {
			continue
		}
		if text := narrowTunnels(svc, networks); text != "" {
			narrow = append(narrow, text)
		}
		for _, on := range onHosts(svc) {
			why := noAgent(on.host, w.hostNodes(on.host), connected)
			switch {
			case why == "":
			case len(out) == maxWarnings:
				more++
			default:
				out = append(out, fmt.Sprintf("%s: %s: %s: %s needs one, packets for %s are lost until it runs",
					lb.Ref(lb.KindService, svc.Name), on.field, why, on.needs(), some(on.backends)))
			}
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("%d more host addresses have no agent", more))
	}
	return slices.Concat(
		boundWarnings(unbound, "%d more muxes have a capacity that does not bind every VIP"), out,
		boundWarnings(narrow, "%d more services take datagrams for which their tunnels are too narrow"),
	)
}

// boundWarnings returns the first maxWarnings of all, and more with the number of the others.
func boundWarnings(all []string, more string) []string {
	if n := len(all) - maxWarnings; n > 0 {
		return append(all[:maxWarnings:maxWarnings], fmt.Sprintf(more, n))
	}
	return all
}

// unbound returns why the capacity of a mux does not bind every VIP that the mux serves, or "" if
// it does or if the mux has no capacity.
func (w *write) unbound(n *lb.Node) string {
	if n.Role != lb.RoleMux || n.Capacity == (lb.Capacity{}) {
		return ""
	}
	v := w.base.v
	v.mu.RLock()
	every := len(v.vips.claims) - len(v.items.where)
	v.mu.RUnlock()
	if every == 0 {
		return ""
	}
	return fmt.Sprintf("%s: capacity: binds services with placement only: %d VIPs of others are on every mux, this one included", lb.Ref(lb.KindNode, n.Name), every)
}

// onHost is a service's backends of rewrite host, and the servers of snat with this host, at one
// host address. field names the host field of the first one. idle reports whether all backends are
// drained.
type onHost struct {
	host     netip.Addr
	field    string
	backends []string
	idle     bool
}

// needs returns the feature that requires an agent at the host.
func (o onHost) needs() string {
	if strings.HasPrefix(o.field, "snat") {
		return "snat"
	}
	return "rewrite host"
}

// onHosts groups the backends and servers of a service that need an agent by their host addresses,
// in the order of the service.
func onHosts(svc *lb.Service) (out []onHost) {
	at := map[netip.Addr]int{}
	group := func(host netip.Addr, field string) *onHost {
		n, known := at[host]
		if !known {
			n = len(out)
			at[host] = n
			out = append(out, onHost{host: host, field: field, idle: true})
		}
		return &out[n]
	}
	for i := range svc.Endpoints {
		ep := &svc.Endpoints[i]
		if !needsAgent(ep) {
			continue
		}
		for j := range ep.Backends {
			b := &ep.Backends[j]
			on := group(b.Host, fmt.Sprintf("endpoints[%d].backends[%d].host", i, j))
			on.idle = on.idle && (b.Drain || b.Weight == 0)
			for _, dip := range b.DIPs {
				if text := backendText(lb.BackendKey{DIP: dip, Port: b.Port}); !slices.Contains(on.backends, text) {
					on.backends = append(on.backends, text)
				}
			}
		}
	}
	for i, server := range svc.SNAT {
		if server.Host.IsValid() {
			on := group(server.Host, fmt.Sprintf("snat[%d]", i))
			on.idle, on.backends = false, append(on.backends, server.DIP.String())
		}
	}
	return out
}

// some lists at most maxNamed names.
func some(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}

// keepsHosts refuses to remove the last Node of role host from an address while backends of rewrite
// host that are not drained are on it. It applies whether the Node is deleted, gets another role or
// loses the address.
func (w *write) keepsHosts() error {
	var faults []lb.Violation
	for r, o := range w.edited {
		rec := w.base.record(r)
		if r.kind != lb.KindNode || rec == nil {
			continue
		}
		old, ok := rec.obj.(*lb.Node)
		if !ok || old.Role != lb.RoleHost {
			continue
		}
		var on []string
		for _, addr := range old.Addresses {
			if len(w.hostNodes(addr)) == 0 {
				on = append(on, w.backendsOn(addr)...)
			}
		}
		if len(on) == 0 {
			continue
		}
		must := "must not be deleted"
		if o != nil {
			must = "must keep its role and addresses"
		}
		faults = append(faults, lb.Violation{Field: lb.Ref(lb.KindNode, r.name), Allowed: fmt.Sprintf(
			"%s while backends of rewrite host are on it and not drained, unless force is set: %s", must, some(on))})
	}
	if len(faults) == 0 {
		return nil
	}
	slices.SortFunc(faults, func(a, b lb.Violation) int { return cmp.Compare(a.Field, b.Field) })
	return invalid{faults}
}

// backendsOn lists the backends of the resulting state that need an agent at a host address and are
// not drained, as in "services/web: 10.20.1.11:8080".
func (w *write) backendsOn(host netip.Addr) (out []string) {
	services := w.base.servicesOn(host)
	for r, o := range w.edited {
		if r.kind == lb.KindService {
			services = slices.DeleteFunc(services, func(s *lb.Service) bool { return s.Name == r.name })
		}
		if svc, ok := o.(*lb.Service); ok {
			services = append(services, svc)
		}
	}
	slices.SortFunc(services, func(a, b *lb.Service) int { return cmp.Compare(a.Name, b.Name) })
	for _, svc := range services {
		for _, on := range onHosts(svc) {
			if on.host == host && !on.idle {
				out = append(out, lb.Ref(lb.KindService, svc.Name)+": "+some(on.backends))
			}
		}
	}
	return out
}

// servicesOn returns the services with bindings at a host address, and those whose snat names it.
func (s *snapshot) servicesOn(host netip.Addr) (out []*lb.Service) {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	names := map[string]bool{}
	for _, item := range s.v.items.byHost[host] {
		if b := item.GetBinding(); b != nil && !names[b.GetService()] {
			names[b.GetService()] = true
			if svc := s.v.state.Services[b.GetService()]; svc != nil {
				out = append(out, svc)
			}
		}
	}
	for name := range s.v.snatServicesLocked()[host] {
		if !names[name] {
			out = append(out, s.v.state.Services[name])
		}
	}
	return out
}

// withoutAgent completes the trace of a packet that a mux forwards to a machine without a host
// agent.
func (m *Manager) withoutAgent(res *apiv1.TraceResult) {
	dip, faults := convert.FromAddr("dip", res.GetDip())
	if res.GetDip() == "" || len(faults) > 0 {
		return
	}
	v := m.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	svc := v.state.Services[res.GetService()]
	if svc == nil {
		return
	}
	for i := range svc.Endpoints {
		ep := &svc.Endpoints[i]
		for j := range ep.Backends {
			b := &ep.Backends[j]
			if !needsAgent(ep) || uint32(b.Port) != res.GetDipPort() || !slices.Contains(b.DIPs, dip) {
				continue
			}
			if why := noAgent(b.Host, v.hostNodesLocked(b.Host), m.reports.seen); why != "" {
				res.NoAgent = why
				res.Steps = append(res.Steps, why)
				return
			}
		}
	}
}

package manager

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
)

// opened is a backend whose host performs the handshakes of an endpoint (cookie.form co).
type opened struct {
	protocol lb.Protocol
	port     uint16
	host     netip.Addr
}

// eachOpened calls f for the backends of a service whose hosts perform handshakes, with the path of
// the backend's host field.
func eachOpened(svc *lb.Service, f func(field string, o opened)) {
	if svc == nil {
		return
	}
	for i := range svc.Endpoints {
		ep := &svc.Endpoints[i]
		if !ep.StampsTCP() || ep.Cookie.Form != lb.CookieCO {
			continue
		}
		for j := range ep.Backends {
			f(fmt.Sprintf("endpoints[%d].backends[%d].host", i, j), opened{ep.Protocol, ep.Port, ep.Backends[j].Host})
		}
	}
}

// unable returns violations for new backends at hosts that reported that they cannot perform the
// required handshakes. Backends that existed before are allowed, so that a host that lost the
// capability can still be drained.
func (w *write) unable(c conditions) (faults []lb.Violation) {
	if c.noHandshakes == nil {
		return nil
	}
	for r, o := range w.edited {
		svc, ok := o.(*lb.Service)
		if !ok {
			continue
		}
		var before []opened
		if old := w.base.record(r); old != nil {
			had, _ := old.obj.(*lb.Service)
			eachOpened(had, func(_ string, o opened) { before = append(before, o) })
		}
		eachOpened(svc, func(field string, o opened) {
			if slices.Contains(before, o) {
				return
			}
			for _, node := range w.nodesAt(o.host) {
				if why := c.noHandshakes(node); why != "" {
					faults = append(faults, lb.Violation{
						Field: lb.Ref(lb.KindService, svc.Name) + ": " + field, Value: o.host.String(),
						Allowed: fmt.Sprintf("must be a host that can make handshakes, as cookie.form co needs: %s says: %s", node, why),
					})
				}
			}
		})
	}
	slices.SortFunc(faults, func(a, b lb.Violation) int { return strings.Compare(a.Field, b.Field) })
	return faults
}

// nodesAt returns the nodes that have an address in the resulting state.
func (w *write) nodesAt(addr netip.Addr) (out []string) {
	for _, name := range w.base.nodesAt(addr) {
		if _, edited := w.edited[ref{lb.KindNode, name}]; !edited {
			out = append(out, name)
		}
	}
	for _, o := range w.edited {
		if n, ok := o.(*lb.Node); ok && slices.Contains(n.Addresses, addr) {
			out = append(out, n.Name)
		}
	}
	return out
}

// nodesAt returns the nodes that have an address.
func (s *snapshot) nodesAt(addr netip.Addr) []string {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return slices.Clone(s.v.wanted.NodesAt(addr))
}

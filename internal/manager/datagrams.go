package manager

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// ethernet is the MTU of most clients' links, and so the length of the fragments of their datagrams
// (RFC 894).
const ethernet = 1500

// narrowTunnels returns a warning about the first endpoint of a service that takes datagrams over
// IPv4 through tunnels too narrow for packets of clients' links, or "" if there is none. Such
// datagrams never arrive, because muxes do not fragment, and a client that fragments without DF
// gets no ICMP error (RFC 1191 section 4). IPv6 clients and TCP adapt.
func narrowTunnels(svc *lb.Service, networks lb.Networks) string {
	for i := range svc.Endpoints {
		ep := &svc.Endpoints[i]
		if ep.Translated() || ep.Protocol == lb.TCP {
			continue
		}
		for j := range ep.Backends {
			for _, vip := range svc.VIPs {
				dip, ok := ep.Backends[j].DIP(vip)
				if !ok || !vip.Is4() {
					continue
				}
				outer, encap := lb.Outer(dip, ep.Backends[j].Host), ep.Encap
				if encap == "" {
					encap = networks.Encap(vip)
				}
				mtu, of := uint32(plan.DefaultMTU), "the default mtu"
				if n := networks.Home([]netip.Addr{outer}); n != nil {
					mtu, of = n.MTU, lb.Ref(lb.KindNetwork, n.Name)+" mtu"
				}
				if overhead := lb.Overhead(encap, outer); mtu < ethernet+overhead {
					return fmt.Sprintf("%s: endpoints[%d]: IPv4 packets of more than %d bytes without DF, as fragments of larger datagrams are, do not arrive (too_big): "+
						"%s is %d, set it, and the MTU of all links of the underlay, to %d or more", lb.Ref(lb.KindService, svc.Name), i, mtu-overhead, of, mtu, ethernet+overhead)
				}
			}
		}
	}
	return ""
}

// serviceWarnings returns Status's warnings for a service, as far as the caller may see it.
func (v *view) serviceWarnings(name string, own owned) []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	svc := v.state.Services[name]
	if svc == nil || !own.has(name) {
		return nil
	}
	if text := narrowTunnels(svc, v.networks); text != "" {
		return []string{text}
	}
	return nil
}

// networks returns the Networks of the resulting state, in order of their names.
func (w *write) networks() lb.Networks {
	out := slices.DeleteFunc(w.base.networks(), func(n *lb.Network) bool {
		_, edited := w.edited[ref{lb.KindNetwork, n.Name}]
		return edited
	})
	for _, o := range w.edited {
		if n, ok := o.(*lb.Network); ok && n != nil {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *lb.Network) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// networks returns all Networks.
func (s *snapshot) networks() lb.Networks {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return slices.Clone(s.v.networks)
}

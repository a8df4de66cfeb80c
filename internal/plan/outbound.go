package plan

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// OutboundVIPs returns the VIPs of services without endpoints.
func (p *Plan) OutboundVIPs() map[netip.Addr]bool {
	var out map[netip.Addr]bool
	for i := range p.Services {
		s := &p.Services[i]
		if !s.Outbound {
			continue
		}
		for _, vip := range s.VIPs {
			if out == nil {
				out = map[netip.Addr]bool{}
			}
			out[vip] = true
		}
	}
	return out
}

// HasVIP reports whether a plan has the VIP, by an endpoint or in outbound, its OutboundVIPs.
// endpoints must be ordered.
func HasVIP(endpoints []Endpoint, outbound map[netip.Addr]bool, vip netip.Addr) bool {
	return outbound[vip] || len(OfVIP(endpoints, lb.EndpointKey{VIP: vip})) > 0
}

package plan

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
)

// Place holds the muxes of a VIP. Names are ordered, and none is in both lists.
type Place struct {
	Muxes []string
	// Leaving are muxes that serve the VIP until the new ones do.
	Leaving []string
}

// Equal reports whether two places are equal.
func (p Place) Equal(o Place) bool {
	return slices.Equal(p.Muxes, o.Muxes) && slices.Equal(p.Leaving, o.Leaving)
}

// All returns the muxes that serve the VIP, ordered.
func (p Place) All() []string {
	all := slices.Concat(p.Muxes, p.Leaving)
	slices.Sort(all)
	return all
}

// VIPOf returns the VIP of an endpoint.
func VIPOf(key lb.EndpointKey) place.Key { return place.Key{VNI: key.VNI, VIP: key.VIP} }

// VIPKey returns the key of a service's VIP (the underlay).
func VIPKey(vip netip.Addr) place.Key { return place.Key{VIP: vip} }

// Where returns the muxes that serve a VIP of the service, ordered. every is true if all muxes
// serve it: when the service sets no number of muxes, and until the VIP is placed.
func (s *State) Where(svc *lb.Service, vip place.Key) (muxes []string, every bool) {
	p, decided := s.Places[vip]
	if !decided || lb.Effective(svc, s.Policies).Placement.Replicas == 0 {
		return nil, true
	}
	return p.All(), false
}

// serves reports whether a mux serves a VIP of the service.
func (s *State) serves(mux string, svc *lb.Service, vip netip.Addr) bool {
	muxes, every := s.Where(svc, VIPKey(vip))
	return every || slices.Contains(muxes, mux)
}

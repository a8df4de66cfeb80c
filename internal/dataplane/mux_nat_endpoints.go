package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// natVIP is a VIP with a protocol.
type natVIP struct {
	vip      netip.Addr
	protocol lb.Protocol
}

// sessionEndpoint is an endpoint as sessions of path nat need it.
type sessionEndpoint struct {
	key                lb.EndpointKey
	slot               uint32
	nat                bool
	untrusted, trusted uint64 // idle ticks
}

// sessionEndpoints finds the endpoint of a session by the client's direction: slots are reused, and what a session says of its own may be old.
type sessionEndpoints struct {
	exact  map[lb.EndpointKey]sessionEndpoint
	ranges map[natVIP][]sessionEndpoint
}

// natEndpoints are those of VIPs that have one of path nat; Mux.mu is held.
func (t *muxTables) natEndpoints() sessionEndpoints {
	translated := map[natVIP]bool{}
	for key, e := range t.entries {
		if e.flags()&muxEndpointFlagENDPOINT_NAT != 0 {
			translated[natVIP{key.VIP, key.Protocol}] = true
		}
	}
	all := sessionEndpoints{map[lb.EndpointKey]sessionEndpoint{}, map[natVIP][]sessionEndpoint{}}
	for key, e := range t.entries {
		of := natVIP{key.VIP, key.Protocol}
		if !translated[of] {
			continue
		}
		found := sessionEndpoint{
			key: key, slot: e.slot, nat: e.flags()&muxEndpointFlagENDPOINT_NAT != 0,
			untrusted: e.policy >> muxPolicyShiftPOLICY_UNTRUSTED_SHIFT & 0xffff, trusted: e.policy >> muxPolicyShiftPOLICY_TRUSTED_SHIFT & 0xffff,
		}
		if key.PortEnd != 0 {
			all.ranges[of] = append(all.ranges[of], found)
		} else {
			all.exact[key] = found
		}
	}
	return all
}

// of is the endpoint of a session: that of the port before the smallest range with it. False: there is none, or it is not of path nat any more.
func (n sessionEndpoints) of(client muxNatKey) (sessionEndpoint, bool) {
	of := natVIP{ofHalves(client.DstHi, client.DstLo), lb.Protocol(client.Protocol)}
	if e, ok := n.exact[lb.EndpointKey{VIP: of.vip, Protocol: of.protocol, Port: client.Dport}]; ok {
		return e, e.nat
	}
	var found sessionEndpoint
	for _, e := range n.ranges[of] {
		if client.Dport < e.key.Port || client.Dport > e.key.PortEnd {
			continue
		}
		if found.key.PortEnd == 0 || e.key.PortEnd-e.key.Port < found.key.PortEnd-found.key.Port {
			found = e
		}
	}
	return found, found.nat
}

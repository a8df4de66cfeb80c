package main

import (
	"net/netip"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// advertises reports whether a connected mux advertises the route of a VIP.
func advertises(mux *apiv1.NodeStatus, vip string) bool {
	if !mux.GetConnected() {
		return false
	}
	for _, r := range mux.GetRoutes() {
		if r.GetAdvertised() && isRoute(r.GetPrefix(), vip) {
			return true
		}
	}
	return false
}

// isRoute reports whether prefix is the host route of the VIP.
func isRoute(prefix, vip string) bool {
	p, err := netip.ParsePrefix(prefix)
	return err == nil && p.IsSingleIP() && p.Addr().String() == vip
}

package bgp

import (
	"fmt"
	"net/netip"
	"slices"
)

// GracefulShutdown is the well-known community GRACEFUL_SHUTDOWN (RFC 8326 section 5), 65535:0.
const GracefulShutdown uint32 = 0xFFFF0000

// Clone returns a copy that shares no memory with the state.
func (s State) Clone() State {
	s.Routes = slices.Clone(s.Routes)
	s.Peers = slices.Clone(s.Peers)
	for i, p := range s.Peers {
		if p.BFD != nil {
			b := *p.BFD
			s.Peers[i].BFD = &b
		}
	}
	return s
}

// Equal reports whether both states are the same; order matters.
func (s State) Equal(o State) bool {
	return s.ASN == o.ASN && s.RouterID == o.RouterID && slices.Equal(s.Routes, o.Routes) &&
		slices.EqualFunc(s.Peers, o.Peers, Peer.Equal)
}

// Equal reports whether both describe the same session.
func (p Peer) Equal(o Peer) bool {
	if (p.BFD == nil) != (o.BFD == nil) || p.BFD != nil && *p.BFD != *o.BFD {
		return false
	}
	p.BFD, o.BFD = nil, nil
	return p == o
}

// Validate returns an error for a state that no speaker can implement. Errors never contain a
// password.
func (s State) Validate() error {
	if s.ASN == 0 {
		if len(s.Peers) > 0 {
			return fmt.Errorf("asn: 0: must be 1 to 4294967295 when there are peers")
		}
		return nil
	}
	if !s.RouterID.Is4() {
		return fmt.Errorf("router id: %v: must be an IPv4 address", s.RouterID)
	}
	seen := map[netip.Addr]bool{}
	for _, p := range s.Peers {
		switch {
		case !p.Address.IsValid() || p.Address.Is4In6():
			return fmt.Errorf("peer address: %v: must be an IPv4 or IPv6 address", p.Address)
		case p.ASN == 0:
			return fmt.Errorf("peer %v: asn: 0: must be 1 to 4294967295", p.Address)
		case seen[p.Address]:
			return fmt.Errorf("peer %v: given twice", p.Address)
		}
		seen[p.Address] = true
	}
	routes := map[netip.Prefix]bool{}
	for _, r := range s.Routes {
		switch {
		case !r.Prefix.IsValid() || r.Prefix.Masked() != r.Prefix:
			return fmt.Errorf("route prefix: %v: must be a prefix without host bits", r.Prefix)
		case r.NextHop.Is4() != r.Prefix.Addr().Is4() || !r.NextHop.IsValid():
			return fmt.Errorf("route %v: next hop: %v: must be an address of the same family", r.Prefix, r.NextHop)
		case r.Rank > MaxRank:
			return fmt.Errorf("route %v: rank: %d: must be 0 to %d", r.Prefix, r.Rank, MaxRank)
		case routes[r.Prefix]:
			return fmt.Errorf("route %v: given twice", r.Prefix)
		}
		routes[r.Prefix] = true
	}
	return nil
}

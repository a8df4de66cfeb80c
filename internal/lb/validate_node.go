package lb

import (
	"fmt"
	"slices"
	"time"
)

// Limits of a node's BGP.
const (
	minBFD        = 10 * time.Millisecond
	maxBFD        = 10 * time.Second
	maxMultiplier = 255 // 8 bits, RFC 5880 section 4.1
	maxFileName   = 4095
	// maxTTLSecurity keeps the lowest accepted TTL at 2.
	maxTTLSecurity = 254
	maxTTL         = 255

	allowedASN        = "must be 1 to 4294967294, but not 23456 or 65535"
	allowedBFD        = "must be 10ms to 10s"
	allowedMultiplier = "must be 1 to 255"

	allowedTTLSecurity = "must be 1 to 254 hops, 0 for none"
	allowedMultihop    = "must be 2 to 255, 0 for a router on the link"
)

func (f *faults) node(n *Node) {
	switch n.Role {
	case RoleMux, RoleHost:
	case "switch":
		f.add("role", string(n.Role), NotSupported+", must be mux or host")
	case "":
		f.add("role", "", "is missing, must be mux or host")
	default:
		f.add("role", string(n.Role), "must be mux or host")
	}
	if n.Zone != "" {
		f.check("zone", n.Zone, label(n.Zone))
	}
	f.families("address", n.Addresses)
	switch {
	case n.Role == RoleHost && n.Capacity != (Capacity{}):
		f.add("capacity", "", "must not be given for a host: only muxes have VIPs")
	case n.Capacity.Packets > MaxRate:
		f.add("capacity.packets", fmt.Sprint(n.Capacity.Packets), allowedRate)
	}
	f.nat(n)
	if n.BGP == nil {
		return
	}
	if n.Role == RoleHost {
		f.add("bgp", "", "must not be given for a host: only muxes speak BGP")
		return
	}
	f.bgp(n)
}

func (f *faults) bgp(n *Node) {
	b := n.BGP
	f.check("bgp.asn", fmt.Sprint(b.ASN), asn(b.ASN))
	switch {
	case !b.RouterID.IsValid():
		if !hasIPv4(n) && !f.hasUnder("address") {
			f.add("bgp.routerId", "", "is missing, must be in the form of an IPv4 address, because the node has none")
		}
	case !b.RouterID.Is4() || b.RouterID.IsUnspecified():
		f.add("bgp.routerId", b.RouterID.String(), "must be in the form of an IPv4 address, and not 0.0.0.0")
	}
	if len(b.Peers) == 0 {
		f.add("bgp.peers", "", "is missing, must have at least one peer")
	}
	for i, p := range b.Peers {
		at := fmt.Sprintf("bgp.peers[%d]", i)
		f.check(at+".address", addrText(p.Address), unicast(p.Address))
		if slices.Contains(n.Addresses, p.Address) {
			f.add(at+".address", p.Address.String(), "must not be an address of the node itself")
		}
		for j := range i {
			if b.Peers[j].Address == p.Address && !f.has(at+".address") {
				f.add(at+".address", p.Address.String(), fmt.Sprintf("must differ from peers[%d]", j))
			}
		}
		f.check(at+".asn", fmt.Sprint(p.ASN), asn(p.ASN))
		if p.PasswordFile != "" && !rooted(p.PasswordFile, maxFileName) {
			f.add(at+".passwordFile", p.PasswordFile, "must be an absolute path of printable ASCII without spaces")
		}
		f.bfd(at+".bfd", p.BFD)
		f.hops(at, b, p)
	}
}

// hops checks the distance of a router.
func (f *faults) hops(at string, b *BGP, p BGPPeer) {
	if p.TTLSecurity > maxTTLSecurity {
		f.add(at+".ttlSecurity", fmt.Sprint(p.TTLSecurity), allowedTTLSecurity)
	}
	switch {
	case p.Multihop == 0:
	case p.Multihop == 1 || p.Multihop > maxTTL:
		f.add(at+".multihop", fmt.Sprint(p.Multihop), allowedMultihop)
	case p.TTLSecurity != 0:
		f.add(at+".multihop", fmt.Sprint(p.Multihop), "must not come with ttlSecurity, which says how far away the router may be")
	case p.ASN == b.ASN:
		f.add(at+".multihop", fmt.Sprint(p.Multihop), "must be left out for a router of the same asn, which may be anywhere")
	case p.BFD != nil:
		f.add(at+".multihop", fmt.Sprint(p.Multihop), "must not come with bfd, which is of one hop (RFC 5881)")
	}
}

func (f *faults) bfd(path string, b *BFD) {
	if b == nil {
		return
	}
	if b.Transmit < minBFD || b.Transmit > maxBFD {
		f.add(path+".transmit", durationText(b.Transmit), allowedBFD)
	}
	if b.Receive < minBFD || b.Receive > maxBFD {
		f.add(path+".receive", durationText(b.Receive), allowedBFD)
	}
	if b.Multiplier < 1 || b.Multiplier > maxMultiplier {
		f.add(path+".multiplier", fmt.Sprint(b.Multiplier), allowedMultiplier)
	}
}

// asn refuses the reserved numbers: 0 (RFC 7607), AS_TRANS (RFC 6793), and the last ones (RFC
// 7300).
func asn(n uint32) string {
	switch n {
	case 0, 23456, 65535, 4294967295:
		return allowedASN
	}
	return ""
}

func hasIPv4(n *Node) bool {
	for _, a := range n.Addresses {
		if a.Is4() {
			return true
		}
	}
	return false
}

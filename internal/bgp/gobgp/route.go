package gobgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/shuntlb/shunt/internal/bgp"
)

// originIGP is ORIGIN IGP (RFC 4271 section 5.1.1).
const originIGP = 0

// defaultLocalPref is the LOCAL_PREF of routes of rank 0, the usual default of routers.
const defaultLocalPref = 100

// syncRoutesLocked withdraws unwanted routes, then announces those that are new or have other
// attributes. A changed attribute is an update of the same prefix, never a withdrawal.
func (s *Speaker) syncRoutesLocked(want []bgp.Route) error {
	wanted := map[netip.Prefix]bool{}
	for _, r := range want {
		wanted[r.Prefix] = true
	}
	var errs []error
	for prefix, r := range s.routes {
		if wanted[prefix] {
			continue
		}
		path, err := s.pathLocked(r)
		if err == nil {
			err = s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("withdraw %v: %w", prefix, err))
			continue
		}
		delete(s.routes, prefix)
	}
	for _, r := range want {
		if s.routes[r.Prefix] == r {
			continue
		}
		path, err := s.pathLocked(r)
		if err == nil {
			_, err = s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("announce %v: %w", r.Prefix, err))
			continue
		}
		s.routes[r.Prefix] = r
	}
	return errors.Join(errs...)
}

// pathLocked returns GoBGP's form of a route.
func (s *Speaker) pathLocked(r bgp.Route) (*apiutil.Path, error) {
	nlri, err := packet.NewIPAddrPrefix(r.Prefix)
	if err != nil {
		return nil, err
	}
	attrs := []packet.PathAttributeInterface{packet.NewPathAttributeOrigin(originIGP)}
	family := packet.RF_IPv4_UC
	if r.Prefix.Addr().Is4() {
		hop, err := packet.NewPathAttributeNextHop(r.NextHop)
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, hop)
	} else {
		family = packet.RF_IPv6_UC
		reach, err := packet.NewPathAttributeMpReachNLRI(family, []packet.PathNLRI{{NLRI: nlri}}, r.NextHop)
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, reach)
	}
	if r.Graceful {
		attrs = append(attrs, packet.NewPathAttributeCommunities([]uint32{bgp.GracefulShutdown}))
	}
	attrs = append(attrs, rankAttributes(r.Rank, s.have.ASN, s.internal)...)
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attrs}, nil
}

// rankAttributes returns attributes by which routers prefer routes of lower rank without
// configuration. External peers compare AS_PATH length before MED, whatever the AS of the other
// speakers (RFC 4271 section 9.1.2.2). Internal peers use LOCAL_PREF, which is not sent to external
// ones (section 5.1.5). A path of internal peers must not contain their own AS (section 9.1.2), so
// that external peers get only MED if there is an internal one.
func rankAttributes(rank uint8, asn uint32, internal bool) []packet.PathAttributeInterface {
	if rank == 0 {
		return nil
	}
	attrs := []packet.PathAttributeInterface{
		packet.NewPathAttributeMultiExitDisc(uint32(rank)), packet.NewPathAttributeLocalPref(defaultLocalPref - uint32(rank)),
	}
	if internal {
		return attrs
	}
	path := packet.NewAs4PathParam(packet.BGP_ASPATH_ATTR_TYPE_SEQ, slices.Repeat([]uint32{asn}, int(rank)))
	return append(attrs, packet.NewPathAttributeAsPath([]packet.AsPathParamInterface{path}))
}

// hasInternal reports whether a peer is in the speaker's own AS.
func hasInternal(want bgp.State) bool {
	return slices.ContainsFunc(want.Peers, func(p bgp.Peer) bool { return p.ASN == want.ASN })
}

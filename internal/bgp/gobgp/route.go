package gobgp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/shuntlb/shunt/internal/bgp"
)

// originIGP is ORIGIN IGP (RFC 4271 section 5.1.1).
const originIGP = 0

// syncRoutesLocked withdraws what is not wanted, then announces what is new or has other attributes; a changed
// attribute is an update of the same prefix, never a withdrawal.
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
		path, err := apiPath(r)
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
		path, err := apiPath(r)
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

// apiPath is GoBGP's form of a route.
func apiPath(r bgp.Route) (*apiutil.Path, error) {
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
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attrs}, nil
}

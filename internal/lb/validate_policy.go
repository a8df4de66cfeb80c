package lb

import (
	"fmt"
	"net/netip"
)

// Limits of shared settings and of tenants.
const (
	// MaxRate is more than any machine can forward.
	MaxRate = 1_000_000_000
	// MaxSources per service: 256 Ki prefixes of 17 bytes are 4.25 MiB of a plan.
	MaxSources = 1 << 18
	// MaxReplicas is more muxes than any router can spread a VIP over.
	MaxReplicas     = 1000
	MaxTenantWeight = 1000

	allowedRate = "must be 0 to 1000000000 a second, 0 for no limit"
	allowedPing = "must be 1 to 1000000000 a second"

	allowedReplicas       = "must be 0 to 1000, 0 for every mux"
	allowedTenantWeight   = "must be 1 to 1000"
	allowedQuota          = "must be 0 to 4294967295, 0 for no limit"
	allowedDefaultedQuota = "must be 0 to 4294967295, 0 for the default, or unlimited"
	allowedVNI            = "must be 0: overlays are " + NotSupported
)

func (f *faults) policy(p *Policy) {
	if p.Tenant != "" {
		f.check("tenant", p.Tenant, label(p.Tenant))
	}
	f.shared(p.Limits, p.Sources, p.Placement)
}

// shared checks the fields that services and policies have in common.
func (f *faults) shared(l *Limits, s *Sources, p *Placement) {
	if l != nil {
		f.limits(l)
	}
	if s != nil {
		f.sources(s)
	}
	if p != nil {
		f.placement(p)
	}
}

func (f *faults) placement(p *Placement) {
	if p.Replicas > MaxReplicas {
		f.add("placement.replicas", fmt.Sprint(p.Replicas), allowedReplicas)
	}
	f.choice("placement.by", p.By, nil, PlaceByVIPs, PlaceByLoad)
}

func (f *faults) limits(l *Limits) {
	if l.Packets > MaxRate {
		f.add("limits.packets", fmt.Sprint(l.Packets), allowedRate)
	}
	if l.Connections > MaxRate {
		f.add("limits.connections", fmt.Sprint(l.Connections), allowedRate)
	}
	if l.Ping < 1 || l.Ping > MaxRate {
		f.add("limits.ping", fmt.Sprint(l.Ping), allowedPing)
	}
}

// sources checks lists that may be long, so it formats paths and values only for faults.
func (f *faults) sources(s *Sources) {
	count := len(s.Allow) + len(s.Deny)
	if count > MaxSources {
		f.add("sources", fmt.Sprintf("%d prefixes", count), fmt.Sprintf("must be at most %d", MaxSources))
		return
	}
	if count == 0 {
		return
	}
	type place struct {
		list  string
		index int
	}
	seen := make(map[netip.Prefix]place, count)
	for _, list := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"allow", s.Allow}, {"deny", s.Deny}} {
		for i, p := range list.prefixes {
			first, twice := seen[p]
			if p.IsValid() && plainPrefix(p) == "" && !twice {
				seen[p] = place{list.name, i}
				continue
			}
			path := fmt.Sprintf("sources.%s[%d]", list.name, i)
			switch {
			case !p.IsValid():
				f.add(path, "", allowedPrefix)
			case !twice:
				f.add(path, p.String(), plainPrefix(p))
			case first.list != list.name:
				f.add(path, p.String(), fmt.Sprintf("must not be allowed and denied, and sources.%s[%d] is the same", first.list, first.index))
			default:
				f.add(path, p.String(), allowedOnce)
			}
		}
	}
}

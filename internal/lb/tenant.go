package lb

import (
	"fmt"
	"net/netip"
	"slices"
)

// DefaultProbes is Quotas.Probes of a Tenant that sets none.
const DefaultProbes = 20_000

// tenant checks one Tenant alone.
func (f *faults) tenant(t *Tenant) {
	if t.Weight < 1 || t.Weight > MaxTenantWeight {
		f.add("weight", fmt.Sprint(t.Weight), allowedTenantWeight)
	}
	if t.VNI != 0 {
		f.add("vni", fmt.Sprint(t.VNI), allowedVNI)
	}
	f.snatQuotas(&t.Quotas)
	f.prefixes("dips", t.DIPs)
	f.prefixes("hosts", t.Hosts)
	f.prefixes("vips", t.VIPs)
	for i := range t.Shared {
		f.share(fmt.Sprintf("shared[%d]", i), t, &t.Shared[i])
	}
}

// share checks the permissions that a Tenant grants to others.
func (f *faults) share(path string, t *Tenant, s *Share) {
	if len(s.Tenants) == 0 {
		f.add(path+".tenants", "", "is missing, must name at least one tenant")
	}
	for i, name := range s.Tenants {
		at := fmt.Sprintf("%s.tenants[%d]", path, i)
		if f.check(at, name, label(name)); name == t.Name {
			f.add(at, name, "must be another tenant")
		}
	}
	unique(f, path+".tenants", s.Tenants)
	if len(s.DIPs)+len(s.VIPs) == 0 {
		f.add(path, "", "needs dips or vips, prefixes inside those of the Tenant")
	}
	for _, list := range []struct {
		name          string
		shared, owned []netip.Prefix
	}{{"dips", s.DIPs, t.DIPs}, {"vips", s.VIPs, t.VIPs}} {
		f.prefixes(path+"."+list.name, list.shared)
		for i, p := range list.shared {
			if at := fmt.Sprintf("%s.%s[%d]", path, list.name, i); !f.has(at) && !within(p, list.owned) {
				f.add(at, p.String(), "must be inside the "+list.name+" of the Tenant: "+listOrNone(list.owned))
			}
		}
	}
}

// within reports whether one of the prefixes contains all of p.
func within(p netip.Prefix, prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Overlaps(p) })
}

// listOrNone returns the prefixes as text, "none" if there are none.
func listOrNone(prefixes []netip.Prefix) string {
	if len(prefixes) == 0 {
		return "none"
	}
	return list(prefixes)
}

// shares reports whether the Tenant permits another tenant to use a DIP, or a VIP.
func (t *Tenant) shares(a netip.Addr, vips bool, tenant string) bool {
	return slices.ContainsFunc(t.Shared, func(s Share) bool {
		prefixes := s.DIPs
		if vips {
			prefixes = s.VIPs
		}
		return slices.Contains(s.Tenants, tenant) && holding(prefixes, a) >= 0
	})
}

// owned returns the prefixes that belong to the Tenant exclusively: DIPs, or VIPs.
func (t *Tenant) owned(vips bool) []netip.Prefix {
	switch {
	case t == nil:
		return nil
	case vips:
		return t.VIPs
	}
	return t.DIPs
}

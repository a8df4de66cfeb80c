package lb

import (
	"net/netip"
	"slices"
)

// owned finds Tenants by the prefixes that they own, of DIPs or of VIPs. A lookup costs one map
// access for each prefix length in use.
type owned struct {
	// tenants holds those with a prefix: one, unless the state is faulty.
	tenants map[netip.Prefix][]*Tenant
	// lengths counts the prefixes of each length, of IPv4 and of IPv6.
	lengths [2]map[int]int
}

func newOwned() owned {
	return owned{tenants: map[netip.Prefix][]*Tenant{}, lengths: [2]map[int]int{{}, {}}}
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// add adds t's prefixes.
func (o *owned) add(prefixes []netip.Prefix, t *Tenant) {
	for _, p := range prefixes {
		if len(o.tenants[p]) == 0 {
			o.lengths[familyOf(p.Addr())][p.Bits()]++
		}
		o.tenants[p] = append(o.tenants[p], t)
	}
}

// remove removes t's prefixes.
func (o *owned) remove(prefixes []netip.Prefix, t *Tenant) {
	for _, p := range prefixes {
		left := slices.DeleteFunc(o.tenants[p], func(other *Tenant) bool { return other == t })
		if o.tenants[p] = left; len(left) > 0 {
			continue
		}
		delete(o.tenants, p)
		lengths := o.lengths[familyOf(p.Addr())]
		if lengths[p.Bits()]--; lengths[p.Bits()] <= 0 {
			delete(lengths, p.Bits())
		}
	}
}

// each calls f for the Tenants with a prefix that contains a.
func (o *owned) each(a netip.Addr, f func(*Tenant)) {
	for bits := range o.lengths[familyOf(a)] {
		if p, err := a.Prefix(bits); err == nil {
			for _, t := range o.tenants[p] {
				f(t)
			}
		}
	}
}

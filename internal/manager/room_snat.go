package manager

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatTable is the name of the table of VIPs with SNAT in the muxes' reports.
const snatTable = "snat_vips"

// snatRoom returns the capacity of each connected mux for VIPs with SNAT, from its report.
func (r *reports) snatRoom() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]int{}
	r.eachMuxLocked(func(name string, st *apiv1.NodeStatus) {
		for _, t := range st.GetTables() {
			if t.GetName() == snatTable && t.GetCapacity() > 0 {
				out[name] = int(t.GetCapacity())
			}
		}
	})
	return out
}

// snatVIPsOf returns the VIPs of an object that have SNAT: the lowest IPv4 VIP of a service with
// snat, which hosts use as the source. Ports of another one would never be used.
func snatVIPsOf(o lb.Object) (out []netip.Addr) {
	if svc, ok := o.(*lb.Service); ok && len(svc.SNAT) > 0 {
		for _, vip := range svc.VIPs {
			switch {
			case !vip.Is4():
			case len(out) == 0:
				out = append(out, vip)
			case vip.Less(out[0]):
				out[0] = vip
			}
		}
	}
	return out
}

// crowdedSNAT returns violations for VIPs that would get SNAT without room on the muxes. VIPs that
// have it may stay, so that a mux with smaller tables than before does not block other changes.
// Muxes that have not reported their capacity do not count.
func (w *write) crowdedSNAT(c conditions) (faults []lb.Violation) {
	if c.snatRoom == nil {
		return nil
	}
	var added []*lb.Service
	for _, o := range w.edited {
		if svc, ok := o.(*lb.Service); ok && len(snatVIPsOf(svc)) > 0 {
			added = append(added, svc)
		}
	}
	if len(added) == 0 {
		return nil
	}
	slices.SortFunc(added, func(a, b *lb.Service) int { return cmp.Compare(a.Name, b.Name) })
	room := c.snatRoom()
	muxes := slices.Sorted(maps.Keys(room))
	v := w.base.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	used := map[string]int{}
	for name, s := range v.snat.vips {
		if o, edited := w.edited[ref{lb.KindService, s.service}]; edited && !slices.Contains(snatVIPsOf(o), name.Addr) {
			continue
		}
		for _, mux := range muxes {
			if v.servesLocked(mux, plan.VIPKey(name.Addr)) {
				used[mux]++
			}
		}
	}
	for _, svc := range added {
		for _, vip := range snatVIPsOf(svc) {
			if s := v.snat.vips[snat.VIP{Addr: vip}]; s != nil && s.service == svc.Name {
				continue
			}
			var full []string
			for _, mux := range muxes {
				if used[mux] >= room[mux] {
					full = append(full, mux)
				}
			}
			replicas := int(lb.Effective(svc, v.state.Policies).Placement.Replicas)
			switch {
			case len(full) == 0, replicas > 0 && len(muxes)-len(full) >= replicas:
			default:
				faults = append(faults, lb.Violation{
					Field: lb.Ref(lb.KindService, svc.Name) + ": snat", Value: vip.String(),
					Allowed: fmt.Sprintf("must fit into the tables of the muxes that serve it: %s has room for %d VIPs with snat, and as many are there (shunt mux --max-snat-vips)", full[0], room[full[0]]),
				})
			}
			if replicas == 0 {
				for _, mux := range muxes {
					used[mux]++
				}
			}
		}
	}
	return faults
}

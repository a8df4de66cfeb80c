package manager

import (
	"maps"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

// place stores initial places for VIPs that become placed. No mux serves a new VIP until its muxes
// are decided. VIPs that existed before stay on all muxes until then. place deletes the places of
// VIPs that are no longer placed.
func (w *write) place() error {
	touched := map[int]map[place.Key]plan.Place{}
	for key, change := range w.replacements() {
		b := key.Bucket(placeBuckets)
		if touched[b] == nil {
			touched[b] = maps.Clone(w.base.bucket(b).places)
			if touched[b] == nil {
				touched[b] = map[place.Key]plan.Place{}
			}
		}
		if change == nil {
			delete(touched[b], key)
		} else {
			touched[b][key] = *change
		}
	}
	for _, b := range slices.Sorted(maps.Keys(touched)) {
		if _, err := w.putBucket(b, w.base.bucket(b).mod, touched[b]); err != nil {
			return err
		}
	}
	return nil
}

// replacements returns the places to add, and nil for those to delete.
func (w *write) replacements() map[place.Key]*plan.Place {
	v := w.base.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	policies := maps.Clone(v.state.Policies)
	// services holds the services whose placement may change, in their resulting version; nil for
	// deleted ones.
	services := map[string]*lb.Service{}
	for r, o := range w.edited {
		if r.kind != lb.KindPolicy {
			continue
		}
		delete(policies, r.name)
		if now, ok := o.(*lb.Policy); ok {
			policies[r.name] = now
		}
		v.wanted.Naming(r.name, func(name string) { services[name] = v.state.Services[name] })
	}
	for r, o := range w.edited {
		if r.kind == lb.KindService {
			services[r.name], _ = o.(*lb.Service)
		}
	}
	out, kept := map[place.Key]*plan.Place{}, map[place.Key]bool{}
	for _, svc := range services {
		if svc == nil || lb.Effective(svc, policies).Placement.Replicas == 0 {
			continue
		}
		for _, vip := range svc.VIPs {
			key := plan.VIPKey(vip)
			kept[key] = true
			if _, decided := v.state.Places[key]; decided {
				continue
			}
			out[key] = &plan.Place{}
			if v.vips.claims[key] != nil {
				out[key].Leaving = w.muxesLocked()
			}
		}
	}
	for name := range services {
		for _, svc := range []*lb.Service{v.state.Services[name], services[name]} {
			if svc == nil {
				continue
			}
			for _, vip := range svc.VIPs {
				key := plan.VIPKey(vip)
				if _, decided := v.state.Places[key]; decided && !kept[key] {
					out[key] = nil
				}
			}
		}
	}
	return out
}

// muxesLocked returns the sorted names of the muxes in the resulting state.
func (w *write) muxesLocked() []string {
	var out []string
	for name := range w.base.v.muxes {
		if _, edited := w.edited[ref{lb.KindNode, name}]; !edited {
			out = append(out, name)
		}
	}
	for _, o := range w.edited {
		if n, ok := o.(*lb.Node); ok && n.Role == lb.RoleMux {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return out
}

package manager

import (
	"slices"

	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// retellLocked rebuilds the service's item if it changed, and reports whether it did. It does not
// rebuild an equal item, because lists of sources are long. It adds the policies whose lists the
// service uses, or used, to lists.
func (v *view) retellLocked(name string, lists map[string]bool) bool {
	key := plan.ServiceItem(name)
	had, told := v.items.told[name]
	if had.SourcesOf != "" {
		delete(v.items.takers[had.SourcesOf], name)
		lists[had.SourcesOf] = true
	}
	svc := v.state.Services[name]
	if svc == nil {
		delete(v.items.told, name)
		delete(v.items.services, key)
		return told
	}
	now := plan.MakeService(svc, v.state.Policies, v.state.Created[name])
	if of := now.SourcesOf; of != "" {
		if v.items.takers[of] == nil {
			v.items.takers[of] = map[string]bool{}
		}
		v.items.takers[of][name] = true
		lists[of] = true
	}
	if told && sameService(&had, &now) {
		return false
	}
	v.items.told[name], v.items.services[key] = now, convert.ServiceItem(&now)
	return true
}

// sameService reports whether two services have equal values in the fields that their endpoints
// share.
func sameService(a, b *plan.Service) bool {
	return slices.Equal(a.VIPs, b.VIPs) && a.Limits == b.Limits && a.SourcesOf == b.SourcesOf && sameSources(a.Sources, b.Sources) &&
		a.Tenant == b.Tenant && a.Created == b.Created && a.Outbound == b.Outbound
}

func sameSources(a, b lb.Sources) bool {
	return slices.Equal(a.Allow, b.Allow) && slices.Equal(a.Deny, b.Deny)
}

// relistLocked rebuilds the item of a policy's list if it changed, and reports whether it did. The
// item exists as long as a service uses it.
func (v *view) relistLocked(policy string) bool {
	had, listed := v.items.lists[policy]
	if len(v.items.takers[policy]) == 0 {
		delete(v.items.takers, policy)
		delete(v.items.lists, policy)
		delete(v.items.sources, policy)
		return listed
	}
	now := plan.MakeSources(v.state.Policies[policy])
	if listed && sameSources(had.Sources, now.Sources) {
		return false
	}
	v.items.lists[policy], v.items.sources[policy] = now, convert.SourcesItem(&now)
	return true
}

// takesLocked reports whether a mux serves a VIP of a service that uses a policy's list.
func (v *view) takesLocked(mux, policy string) bool {
	for service := range v.items.takers[policy] {
		if v.servesAnyLocked(mux, service) {
			return true
		}
	}
	return false
}

// tellService records that a service may have been added, changed or removed for muxes, and with it
// the lists of policies that it uses or used.
func (c *change) tellService(to reach, name string, policies ...string) {
	c.tellMuxes(to, plan.ServiceItem(name))
	for _, policy := range policies {
		if policy != "" {
			c.tellMuxes(to, plan.SourcesItem(policy))
		}
	}
}

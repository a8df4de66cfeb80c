package manager

import (
	"slices"

	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// retellLocked makes the service's item afresh where it differs and tells whether it did. Lists of sources are long: an
// equal item is not made again. Policies whose list it takes, or took, are put into lists.
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

// sameService tells whether two services share the same among their endpoints.
func sameService(a, b *plan.Service) bool {
	return slices.Equal(a.VIPs, b.VIPs) && a.Limits == b.Limits && a.SourcesOf == b.SourcesOf && sameSources(a.Sources, b.Sources) &&
		a.Tenant == b.Tenant && a.Created == b.Created && a.Outbound == b.Outbound
}

func sameSources(a, b lb.Sources) bool {
	return slices.Equal(a.Allow, b.Allow) && slices.Equal(a.Deny, b.Deny)
}

// relistLocked makes the item of a policy's list afresh where it differs and tells whether it did. It is there as long
// as a service takes it.
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

// takesLocked tells whether a mux serves a VIP of a service that takes a policy's list.
func (v *view) takesLocked(mux, policy string) bool {
	for service := range v.items.takers[policy] {
		if v.servesAnyLocked(mux, service) {
			return true
		}
	}
	return false
}

// tellService notes that a service may have changed for muxes, come or gone, and with it the lists of policies that it
// takes or took.
func (c *change) tellService(to reach, name string, policies ...string) {
	c.tellMuxes(to, plan.ServiceItem(name))
	for _, policy := range policies {
		if policy != "" {
			c.tellMuxes(to, plan.SourcesItem(policy))
		}
	}
}

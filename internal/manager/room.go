package manager

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// tenantShare limits callers of role tenant to 1/tenantShare of each table of a mux for one tenant,
// unless its Tenant has quotas.endpoints.
const tenantShare = 4

// muxTable is a table of muxes whose use is determined by the objects.
type muxTable struct {
	name string // as in TableStatus
	unit string
	used func(lb.Tables) int
}

// muxTables count a lower bound of the entries that an object needs. A mux may need more, for
// members that drain and blocks that grow, and withholds VIPs then.
var muxTables = []muxTable{
	{"quic_endpoints", "QUIC endpoints", func(t lb.Tables) int { return t.QUIC }},
	{"endpoints", "endpoints and VIPs", func(t lb.Tables) int { return t.Endpoints }},
	{"members", "members", func(t lb.Tables) int { return t.Members }},
}

// tableRoom is the smallest capacity of a table among the muxes that report, and the mux with it.
type tableRoom struct {
	node     string
	capacity int
}

// room returns the smallest capacity of each table. Tables that no mux reported are missing.
func (r *reports) room() map[string]tableRoom {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]tableRoom{}
	r.eachMuxLocked(func(name string, st *apiv1.NodeStatus) { leastRoom(out, name, st.GetTables()) })
	return out
}

func leastRoom(out map[string]tableRoom, node string, tables []*apiv1.TableStatus) {
	for _, t := range tables {
		now := tableRoom{node, int(min(t.GetCapacity(), math.MaxInt32))}
		old, known := out[t.GetName()]
		if !known || cmp.Or(cmp.Compare(now.capacity, old.capacity), cmp.Compare(now.node, old.node)) < 0 {
			out[t.GetName()] = now
		}
	}
}

// growth returns the change of tenants' usage by the write.
func (w *write) growth() map[string]lb.Usage {
	out := map[string]lb.Usage{}
	add := func(o lb.Object, sign int) {
		if svc, ok := o.(*lb.Service); ok {
			u := out[svc.Tenant]
			u.Add(svc.Usage().Times(sign))
			out[svc.Tenant] = u
		}
	}
	for r, o := range w.edited {
		if old := w.base.record(r); old != nil {
			add(old.obj, -1)
		}
		add(o, 1)
	}
	return out
}

// services returns the field path of the endpoints of the first edited service of a tenant, or of
// any tenant with "*".
func (w *write) services(tenant string) string { return w.servicesWith(tenant, "endpoints") }

// servicesWith returns the path of a field of that service.
func (w *write) servicesWith(tenant, field string) string {
	var names []string
	for _, o := range w.edited {
		if svc, ok := o.(*lb.Service); ok && (tenant == "*" || svc.Tenant == tenant) {
			names = append(names, svc.Name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "services"
	}
	return lb.Ref(lb.KindService, names[0]) + ": " + field
}

// crowded returns violations for tables of muxes that the write would fill beyond their capacity. A
// write that needs no more of a table than before passes, regardless of the table's use.
func (w *write) crowded(c conditions) (faults []lb.Violation) {
	if c.room == nil {
		return nil
	}
	room := c.room()
	if len(room) == 0 {
		return nil
	}
	var grown lb.Usage
	for _, u := range w.growth() {
		grown.Add(u)
	}
	before := w.base.usedByAll()
	for _, t := range muxTables {
		least, known := room[t.name]
		more, used := t.used(grown.Everywhere), t.used(before.Everywhere)
		if known && more > 0 && used+more > least.capacity {
			faults = append(faults, lb.Violation{
				Field: w.services("*"), Value: fmt.Sprintf("%d more %s", more, t.unit),
				Allowed: fmt.Sprintf("must be at most %d more: table %s of %s has room for %d, and %d are in use", max(0, least.capacity-used), t.name, lb.Ref(lb.KindNode, least.node), least.capacity, used),
			})
		}
	}
	return faults
}

// overDefaults returns violations for the default quotas and shares of tables that a write of role
// tenant would exceed.
func (w *write) overDefaults(room func() map[string]tableRoom) (faults []lb.Violation) {
	if w.by.role != pki.RoleTenant {
		return nil
	}
	tenant := w.by.tenant
	grown, used, given := w.growth()[tenant], w.base.used(tenant), w.base.quotas(tenant)
	over := func(what string, used, more, most int, why string) {
		if more > 0 && used+more > most {
			faults = append(faults, lb.Violation{
				Field: w.services(tenant), Value: fmt.Sprintf("%d %s", used+more, what), Allowed: fmt.Sprintf("must be at most %d, %s", most, why),
			})
		}
	}
	quota := func(name string, used, more int, quota, byDefault uint32) {
		if quota == 0 {
			over(name, used, more, int(byDefault), fmt.Sprintf("the default of quotas.%s of %s", name, lb.Ref(lb.KindTenant, tenant)))
		}
	}
	quota("services", used.Services, grown.Services, given.Services, lb.DefaultQuotas.Services)
	quota("endpoints", used.Endpoints, grown.Endpoints, given.Endpoints, lb.DefaultQuotas.Endpoints)
	quota("backends", used.Backends, grown.Backends, given.Backends, lb.DefaultQuotas.Backends)
	if given.Endpoints != 0 {
		return faults
	}
	rooms := room()
	for _, t := range muxTables {
		if least, known := rooms[t.name]; known {
			over(t.unit, t.used(used.Everywhere), t.used(grown.Everywhere), least.capacity/tenantShare,
				fmt.Sprintf("a tenant's share of table %s of muxes, unless its Tenant has quotas.endpoints", t.name))
		}
	}
	return faults
}

// usedByAll returns the usage by services of all tenants.
func (s *snapshot) usedByAll() lb.Usage {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return s.v.wanted.UsedByAll()
}

// used returns the usage by services of a tenant.
func (s *snapshot) used(tenant string) lb.Usage {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return s.v.wanted.Used(tenant)
}

// quotas returns those of a Tenant, zero without one.
func (s *snapshot) quotas(tenant string) lb.Quotas {
	if r := s.record(ref{lb.KindTenant, tenant}); r != nil {
		return r.obj.(*lb.Tenant).Quotas
	}
	return lb.Quotas{}
}

package manager

import (
	"cmp"
	"fmt"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// maxTenantStored bounds the bytes of one tenant's objects that changes of role tenant may bring
// into the store and every manager. A Policy with 100,000 prefixes has 2 MB, a service of ten
// backends less than a kilobyte.
const maxTenantStored = 64 << 20

// holding is the size of a tenant's stored objects. Its Tenant object does not count, because that
// is the operator's.
type holding struct {
	bytes    int64
	policies int
}

func (h holding) plus(o holding, sign int) holding {
	return holding{h.bytes + int64(sign)*o.bytes, h.policies + sign*o.policies}
}

// holdingOf returns the tenant of an object and its part of the tenant's holding; no tenant for
// objects without one and for the operator's.
func holdingOf(o lb.Object, bytes int) (tenant string, h holding) {
	switch o := o.(type) {
	case *lb.Service:
		return o.Tenant, holding{bytes: int64(bytes)}
	case *lb.Policy:
		return o.Tenant, holding{bytes: int64(bytes), policies: 1}
	}
	return "", holding{}
}

// grows reports whether a write with this difference stores more.
func (h holding) grows() bool { return h.bytes > 0 || h.policies > 0 }

// holdLocked adds a record to its tenant's holding, or subtracts it if sign is -1.
func (v *view) holdLocked(r *record, sign int) {
	tenant, h := holdingOf(r.obj, r.size)
	if tenant == "" {
		return
	}
	if v.holdings[tenant] = v.holdings[tenant].plus(h, sign); v.holdings[tenant] == (holding{}) {
		delete(v.holdings, tenant)
	}
}

// holding returns the holding of a tenant.
func (s *snapshot) holding(tenant string) holding {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return s.v.holdings[tenant]
}

// hold counts an object of the write that replaces old. Either may be nil.
func (w *write) hold(old *record, next lb.Object, bytes int) {
	if old != nil {
		tenant, h := holdingOf(old.obj, old.size)
		w.held[tenant] = w.held[tenant].plus(h, -1)
	}
	if next != nil {
		tenant, h := holdingOf(next, bytes)
		w.held[tenant] = w.held[tenant].plus(h, 1)
	}
}

// overHolding returns the faults of a write of role tenant that stores too much. A write that
// stores less passes.
func (w *write) overHolding() (faults []lb.Violation) {
	if w.by.role != pki.RoleTenant {
		return nil
	}
	tenant := w.by.tenant
	more := w.held[tenant]
	after, ref := w.base.holding(tenant).plus(more, 1), lb.Ref(lb.KindTenant, tenant)
	if more.bytes > 0 && after.bytes > maxTenantStored {
		faults = append(faults, lb.Violation{
			Field: "objects", Value: fmt.Sprintf("%d bytes", after.bytes),
			Allowed: fmt.Sprintf("must be at most %d in all, as the services and policies of %s are stored", maxTenantStored, ref),
		})
	}
	if most := cmp.Or(w.base.quotas(tenant).Services, lb.DefaultQuotas.Services); more.policies > 0 && int64(after.policies) > int64(most) {
		faults = append(faults, lb.Violation{
			Field: "objects", Value: fmt.Sprintf("%d policies", after.policies),
			Allowed: fmt.Sprintf("must be at most %d: %s may have as many policies as services (quotas.services)", most, ref),
		})
	}
	return faults
}

package manager

import (
	"context"
	"errors"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// quotaEvent returns the event of a change that was refused because of a tenant's quota. The tenant
// sees it.
func quotaEvent(tenant, why string) *apiv1.Event {
	return &apiv1.Event{Kind: string(lb.KindTenant), Name: tenant, Tenant: tenant, Reason: reasonQuotaRefused, Message: why}
}

// overQuota records the refusal of a write if quotas are the cause. Other faults of a request are
// not refusals, because no caller could write them.
func (m *Manager) overQuota(ctx context.Context, err error) {
	var inv invalid
	if !errors.As(err, &inv) {
		return
	}
	over := false
	for _, f := range inv.faults {
		object, field, _ := strings.Cut(f.Field, ": ")
		tenant, ok := strings.CutPrefix(object, lb.KindTenant.Plural()+"/")
		if !ok || !strings.HasPrefix(field, "quotas.") {
			continue
		}
		over = true
		m.event(quotaEvent(tenant, field+": "+f.Value+": "+f.Allowed))
	}
	if over {
		e := m.auditEntry(ctx)
		e.Refused = err.Error()
		m.audited(e)
	}
}

package manager

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// audited notes a call that changed something or was refused. It never blocks.
func (m *Manager) audited(e *apiv1.AuditEntry) {
	m.o.Log.Info("audit", "who", e.GetWho(), "from", e.GetFrom(), "call", e.GetCall(), "what", e.GetWhat(), "refused", e.GetRefused())
}

// Audit implements the API.
func (api) Audit(context.Context, *connect.Request[apiv1.AuditRequest]) (*connect.Response[apiv1.AuditResponse], error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("Audit: "+lb.NotSupported))
}

package manager

import (
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestBalancingIsNoRefusal: a node that is moved to another manager, or that waits for its turn,
// causes no entry in the audit log. A refusal does.
func TestBalancingIsNoRefusal(t *testing.T) {
	var audited []*apiv1.AuditEntry
	d := &door{clock: clock.System{}, attempts: newAttempts(), audited: func(e *apiv1.AuditEntry) { audited = append(audited, e) }}
	id := identity{via: "certificate", role: string(lb.RoleMux)}
	for what, err := range map[string]*connect.Error{"more nodes than its share": elsewhere(), "too many snapshots at once": crowded()} {
		if got := (guard{d}).judged(id, shuntv1connect.NodeProtocolSyncProcedure, err); got != error(err) || len(audited) != 0 {
			t.Errorf("%s: the node gets %v, and the audit log %v", what, got, audited)
		}
	}
	_ = guard{d}.judged(id, shuntv1connect.NodeProtocolSyncProcedure, denied("no"))
	if len(audited) != 1 || audited[0].GetRefused() != "no" {
		t.Errorf("the audit log has %v of a refusal", audited)
	}
}

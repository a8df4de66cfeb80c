// Package agent is the loop that node agents share: join, stream, fold changes into a full plan,
// apply, report.
package agent

import (
	"context"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/plan"
)

// Verdicts provides the results of a node's own checks.
type Verdicts interface {
	// Changed is notified when Take has something to return.
	Changed() <-chan struct{}
	// Take returns the changes since the last call; all: everything, as full verdicts.
	Take(all bool) plan.Verdicts
}

// Suspicion detects that the node is isolated, because too much failed at the same time.
type Suspicion interface {
	// Suspicions is notified when isolation begins or ends.
	Suspicions() <-chan struct{}
	// Suspect returns since when the node considers itself isolated; zero: it does not.
	Suspect() time.Time
	// OthersSay receives the reports of other nodes on this node's members, always full.
	OthersSay(plan.Verdicts)
}

// Handler implements a node agent on top of the loop.
type Handler interface {
	// Apply applies the full wanted state, which is never changed in place afterwards. It is
	// idempotent. An error leaves the node at the last good plan as far as possible and is reported
	// to the manager; the next plan is tried afresh.
	Apply(ctx context.Context, p plan.Plan) error
	// Status returns the node's report: members, reasons, routes, peers. The loop sets name, role
	// and revision. The handler does not modify the message afterwards.
	Status() *apiv1.NodeStatus
	// Trace answers a trace request; hosts return an error.
	Trace(*apiv1.TraceRequest) *apiv1.TraceResult
	// Flows answers a request for flows, and stops with an error when ctx ends; hosts return an
	// error. Apply, Status and Trace are called while it runs.
	Flows(ctx context.Context, q *apiv1.FlowsRequest) *apiv1.FlowsResult
	// Health returns the check results of the requested members, in their order, empty for those
	// that the node does not check.
	Health(*apiv1.HealthQuestion) *apiv1.HealthResult
}

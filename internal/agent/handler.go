// Package agent is the loop that node agents share: join, stream, fold changes into a full plan, apply, report.
package agent

import (
	"context"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/plan"
)

// Verdicts is what a node's own checks come to.
type Verdicts interface {
	// Changed is poked when there is something to take.
	Changed() <-chan struct{}
	// Take returns what changed since the last call; all: everything, as full verdicts.
	Take(all bool) plan.Verdicts
}

// Suspicion is a node's doubt about itself: too much failed at once.
type Suspicion interface {
	// Suspicions is poked when it begins or ends.
	Suspicions() <-chan struct{}
	// Suspect is since when there is one; zero: there is none.
	Suspect() time.Time
	// OthersSay takes what others see of the node's members, always full.
	OthersSay(plan.Verdicts)
}

// Handler is what a node agent brings to the loop.
type Handler interface {
	// Apply makes the node obey the full wanted state, which nobody changes in place afterwards. It is idempotent. An error
	// leaves the node at the last good plan as far as possible and is reported to the manager; the next plan is tried afresh.
	Apply(ctx context.Context, p plan.Plan) error
	// Status fills the node's report: members, reasons, routes, peers. Name, role and revision are set by the loop.
	// The handler does not touch the message afterwards.
	Status() *apiv1.NodeStatus
	// Trace answers a trace question; hosts answer with an error.
	Trace(*apiv1.TraceRequest) *apiv1.TraceResult
	// Flows answers a question for flows, and stops with an error when ctx ends; hosts answer with an error. Apply, Status and Trace are
	// called while it runs.
	Flows(ctx context.Context, q *apiv1.FlowsRequest) *apiv1.FlowsResult
	// Health answers how the checks of members went: one answer for each asked for, in their order, empty for those that the
	// node does not check.
	Health(*apiv1.HealthQuestion) *apiv1.HealthResult
}

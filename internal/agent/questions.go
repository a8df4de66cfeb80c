package agent

import (
	"context"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

const (
	// questionQueue bounds the requests that wait for a response. Managers bound those of one
	// tenant (questionsPerTenant), so that several tenants fit.
	questionQueue = 64
	// questionTimeout is how long a manager waits that does not send its own limit.
	questionTimeout = 10 * time.Second
)

// question is an update with requests, and when it was received.
type question struct {
	*apiv1.PlanUpdate
	received time.Time
}

// answerAll answers requests one after the other and passes the reports to the sender. It runs in
// its own goroutine, because a walk over the flow table takes seconds and must not delay
// acknowledgements, verdicts and statuses.
func (l *loop) answerAll(ctx context.Context, questions <-chan question, answers chan<- *apiv1.NodeReport) {
	for {
		select {
		case q := <-questions:
			r := &apiv1.NodeReport{}
			if !l.answer(ctx, r, q) {
				continue
			}
			select {
			case answers <- r:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// answer adds the responses to an update's requests to a report. It returns false if the manager
// has stopped waiting.
func (l *loop) answer(ctx context.Context, r *apiv1.NodeReport, q question) bool {
	if t := q.GetTrace(); t != nil {
		r.Trace = &apiv1.TraceReply{Id: t.GetId(), Result: l.h.Trace(t.GetRequest())}
	}
	if f := q.GetFlows(); f != nil {
		left := timeoutOf(f) - l.o.Clock.Now().Sub(q.received)
		if left <= 0 {
			return false
		}
		walk, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-l.o.Clock.After(left):
				cancel()
			case <-walk.Done():
			}
		}()
		r.Flows = &apiv1.FlowsReply{Id: f.GetId(), Result: l.h.Flows(walk, f.GetRequest())}
	}
	if h := q.GetHealthOf(); h != nil {
		r.HealthReply = &apiv1.HealthReply{Id: h.GetId(), Result: l.h.Health(h)}
	}
	if w := q.GetSnatWords(); w != nil {
		words := &apiv1.SnatWords{Error: noLeases}
		if l.o.Leases != nil {
			words = l.o.Leases.Words(w)
		}
		r.SnatWords = &apiv1.SnatWordsReply{Id: w.GetId(), Result: words}
	}
	return true
}

// timeoutOf returns how long the manager waits for a response.
func timeoutOf(f *apiv1.FlowsQuestion) time.Duration {
	if f.GetTimeout() == nil {
		return questionTimeout
	}
	return f.GetTimeout().AsDuration()
}

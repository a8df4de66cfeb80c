package agent

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
)

// slow is a handler whose walks over flows end only with their context.
type slow struct {
	obedient
	began chan struct{}
}

func (s slow) Flows(ctx context.Context, _ *apiv1.FlowsRequest) *apiv1.FlowsResult {
	s.began <- struct{}{}
	<-ctx.Done()
	return &apiv1.FlowsResult{Error: ctx.Err().Error()}
}

func flowsQuestion(id uint64) *apiv1.PlanUpdate {
	return &apiv1.PlanUpdate{Flows: &apiv1.FlowsQuestion{Id: id, Request: &apiv1.FlowsRequest{}, Timeout: durationpb.New(2 * time.Second)}}
}

// TestQuestionsDelayNoAcknowledgement: a node acknowledges plans while it answers a request, and
// stops when the manager stops waiting. Requests that expired in the queue are dropped.
func TestQuestionsDelayNoAcknowledgement(t *testing.T) {
	m, fake := newManagerTwin(t), clock.NewFake(time.Now())
	h := slow{began: make(chan struct{})}
	m.run(Options{Clock: fake, StatusInterval: time.Hour}, h)
	s := m.accept()
	s.ups <- nodeUpdate(7, 1, true)
	for s.report().GetSyncedRevision() != 7 {
	}
	s.ups <- flowsQuestion(1)
	s.ups <- flowsQuestion(2)
	<-h.began
	s.ups <- nodeUpdate(8, 1, true)
	for r := s.report(); r.GetSyncedRevision() != 8; r = s.report() {
		if r.GetFlows() != nil {
			t.Fatalf("the answer came before the acknowledgement: %v", r)
		}
	}
	answer := func() *apiv1.FlowsReply {
		for {
			if f := s.until(fake, time.Second).GetFlows(); f != nil {
				return f
			}
		}
	}
	if f := answer(); f.GetId() != 1 || f.GetResult().GetError() != context.Canceled.Error() {
		t.Errorf("answer is %v, want the first question's, canceled", f)
	}
	s.ups <- flowsQuestion(3)
	<-h.began
	if f := answer(); f.GetId() != 3 {
		t.Errorf("answer is %v, want the third question's: the time of the second was over", f)
	}
}

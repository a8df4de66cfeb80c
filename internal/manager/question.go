package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// errNoAnswer reports a node's reply without the requested result, because the node's version does
// not support the request.
var errNoAnswer = errors.New("did not understand the question: its version differs from the manager's")

// asked returns the muxes that a request goes to: the named one, or every connected one.
func (m *Manager) asked(node string) ([]string, error) {
	if node == "" {
		names := m.reports.muxes()
		if len(names) == 0 {
			return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("no mux is connected"))
		}
		return names, nil
	}
	if st := m.reports.all(node, nil); len(st) == 0 || st[0].GetRole() != string(lb.RoleMux) {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("node %s: is not a connected mux", node))
	}
	return []string{node}, nil
}

// askAll sends requests to nodes concurrently. Results are in the order of names.
func askAll[N, R any](names []N, ask func(name N) R) []R {
	out := make([]R, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { out[i] = ask(name) })
	}
	wg.Wait()
	return out
}

// ask sends a request on a node's stream and waits for the report with the reply. question makes
// the request with its id.
func (m *Manager) ask(ctx context.Context, node string, question func(id uint64) *apiv1.PlanUpdate) (*apiv1.NodeReport, error) {
	s := m.sessions.get(node)
	if s == nil {
		return nil, errors.New("is not connected")
	}
	id, answer := m.reports.expect(node)
	defer m.reports.forget(id)
	if !s.ask(question(id)) {
		return nil, errors.New("does not read: too many questions wait for it")
	}
	select {
	case report := <-answer:
		return report, nil
	case <-s.ctx.Done():
		return nil, errors.New("its stream ended before it answered")
	case <-m.o.Clock.After(m.o.TraceTimeout):
		return nil, fmt.Errorf("did not answer within %v", m.o.TraceTimeout)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// question is a request that a node has not answered yet.
type question struct {
	node   string
	answer chan *apiv1.NodeReport // room for one
}

func (r *reports) expect(node string) (uint64, <-chan *apiv1.NodeReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	answer := make(chan *apiv1.NodeReport, 1)
	r.waiting[r.asked] = question{node, answer}
	return r.asked, answer
}

func (r *reports) forget(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, id)
}

// answer delivers the replies in a report of the requested node. Only the first one counts.
func (r *reports) answer(node string, report *apiv1.NodeReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	deliver := func(id uint64) {
		if q, ok := r.waiting[id]; ok && q.node == node {
			q.answer <- report
			delete(r.waiting, id)
		}
	}
	if t := report.GetTrace(); t.GetResult() != nil {
		deliver(t.GetId())
	}
	if f := report.GetFlows(); f.GetResult() != nil {
		deliver(f.GetId())
	}
	if h := report.GetHealthReply(); h.GetResult() != nil {
		deliver(h.GetId())
	}
	if w := report.GetSnatWords(); w.GetResult() != nil {
		deliver(w.GetId())
	}
}

// muxes returns the connected muxes, sorted by name.
func (r *reports) muxes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for name, h := range r.heard {
		if st := h.status; st.GetConnected() && st.GetRole() == string(lb.RoleMux) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// Trace implements the API: it asks the muxes over their streams.
func (a api) Trace(ctx context.Context, req *connect.Request[apiv1.TraceRequest]) (*connect.Response[apiv1.TraceResponse], error) {
	if faults := traceFaults(req.Msg); len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	names := []string{req.Msg.GetNode()}
	if req.Msg.GetNode() == "" {
		names = a.m.reports.muxes()
	} else if st := a.m.reports.all(req.Msg.GetNode(), nil); len(st) == 0 || st[0].GetRole() != string(lb.RoleMux) {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("node %s: is not a connected mux", req.Msg.GetNode()))
	}
	if len(names) == 0 {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("no mux is connected"))
	}
	out := &apiv1.TraceResponse{Results: make([]*apiv1.TraceResult, len(names))}
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { out.Results[i] = a.m.ask(ctx, name, req.Msg) })
	}
	wg.Wait()
	return connect.NewResponse(out), nil
}

func traceFaults(req *apiv1.TraceRequest) []lb.Violation {
	_, faults := convert.FromAddr("client", req.GetClient())
	_, more := convert.FromAddr("vip", req.GetVip())
	faults = append(faults, more...)
	if _, allowed := lb.ParseProtocol(req.GetProtocol()); allowed != "" {
		faults = append(faults, lb.Violation{Field: "protocol", Value: req.GetProtocol(), Allowed: allowed})
	}
	for field, port := range map[string]uint32{"port": req.GetPort(), "client_port": req.GetClientPort()} {
		if port == 0 || port > 65535 {
			faults = append(faults, lb.Violation{Field: field, Value: strconv.Itoa(int(port)), Allowed: "must be 1 to 65535"})
		}
	}
	if req.GetVni() >= 1<<24 {
		faults = append(faults, lb.Violation{Field: "vni", Value: strconv.Itoa(int(req.GetVni())), Allowed: "must be 0 to 16777215"})
	}
	return faults
}

// ask asks one mux; the answer's error tells what went wrong.
func (m *Manager) ask(ctx context.Context, node string, req *apiv1.TraceRequest) *apiv1.TraceResult {
	s := m.sessions.get(node)
	if s == nil {
		return &apiv1.TraceResult{Node: node, Error: "is not connected"}
	}
	id, answer := m.reports.expect(node)
	defer m.reports.forget(id)
	s.ask(&apiv1.TraceQuestion{Id: id, Request: req})
	select {
	case res := <-answer:
		res.Node = node
		return res
	case <-s.ctx.Done():
		return &apiv1.TraceResult{Node: node, Error: "its stream ended before it answered"}
	case <-m.o.Clock.After(m.o.TraceTimeout):
		return &apiv1.TraceResult{Node: node, Error: "did not answer within " + m.o.TraceTimeout.String()}
	case <-ctx.Done():
		return &apiv1.TraceResult{Node: node, Error: ctx.Err().Error()}
	}
}

// question is a trace that a node has not answered yet.
type question struct {
	node   string
	answer chan *apiv1.TraceResult // room for one
}

func (r *reports) expect(node string) (uint64, <-chan *apiv1.TraceResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	answer := make(chan *apiv1.TraceResult, 1)
	r.waiting[r.asked] = question{node, answer}
	return r.asked, answer
}

func (r *reports) forget(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, id)
}

// answer delivers the answer of the node that was asked; only the first one counts.
func (r *reports) answer(node string, reply *apiv1.TraceReply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q, ok := r.waiting[reply.GetId()]; ok && q.node == node && reply.GetResult() != nil {
		q.answer <- reply.GetResult()
		delete(r.waiting, reply.GetId())
	}
}

// muxes are the connected ones, ordered by name.
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

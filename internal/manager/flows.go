package manager

import (
	"context"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// Bounds of FlowsRequest.limit. A response with maxFlows is about 8 MB, well below maxRequestBytes.
const (
	defaultFlows = 1000
	maxFlows     = 100_000
)

// Flows implements the API: it queries the muxes over their streams.
func (a api) Flows(ctx context.Context, req *connect.Request[apiv1.FlowsRequest]) (*connect.Response[apiv1.FlowsResponse], error) {
	if faults := flowsFaults(req.Msg); len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	names, err := a.m.asked(req.Msg.GetNode())
	if err != nil {
		return nil, err
	}
	if req.Msg.Limit == 0 {
		req.Msg.Limit = defaultFlows
	}
	ask := func(id uint64) *apiv1.PlanUpdate {
		return &apiv1.PlanUpdate{Flows: &apiv1.FlowsQuestion{Id: id, Request: req.Msg, Timeout: durationpb.New(a.m.o.TraceTimeout)}}
	}
	out := &apiv1.FlowsResponse{Results: askAll(names, func(name string) *apiv1.FlowsResult {
		reply, err := a.m.ask(ctx, name, ask)
		res := reply.GetFlows().GetResult()
		if err == nil && res == nil {
			err = errNoAnswer
		}
		if err != nil {
			res = &apiv1.FlowsResult{Error: err.Error()}
		}
		res.Node = name
		return res
	})}
	return connect.NewResponse(out), nil
}

func flowsFaults(req *apiv1.FlowsRequest) []lb.Violation {
	_, faults := convert.FromAddr("vip", req.GetVip())
	if p := req.GetProtocol(); p != "" && p != "any" {
		if _, allowed := lb.ParseProtocol(p); allowed != "" {
			faults = append(faults, lb.Violation{Field: "protocol", Value: p, Allowed: allowed})
		}
	}
	if !isPorts(req.GetPort()) {
		faults = append(faults, lb.Violation{Field: "port", Value: req.GetPort(), Allowed: `must be a port, a range such as 8000-8100, "*", or empty`})
	}
	if req.GetLimit() > maxFlows {
		faults = append(faults, lb.Violation{Field: "limit", Value: strconv.FormatUint(uint64(req.GetLimit()), 10), Allowed: "must be 0 to " + strconv.Itoa(maxFlows)})
	}
	return faults
}

// isPorts reports whether a text has the form of Endpoint.port, or is empty.
func isPorts(s string) bool {
	if s == "" || s == "*" {
		return true
	}
	low, high, isRange := strings.Cut(s, "-")
	first, err := strconv.ParseUint(low, 10, 16)
	if err != nil || !isRange {
		return err == nil
	}
	last, err := strconv.ParseUint(high, 10, 16)
	return err == nil && first <= last
}

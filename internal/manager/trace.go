package manager

import (
	"context"
	"encoding/hex"
	"slices"
	"strconv"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// Trace implements the API. It queries the muxes over their streams.
func (a api) Trace(ctx context.Context, req *connect.Request[apiv1.TraceRequest]) (*connect.Response[apiv1.TraceResponse], error) {
	if faults := traceFaults(req.Msg); len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	names, err := a.m.asked(req.Msg.GetNode())
	if err != nil {
		return nil, err
	}
	ask := func(id uint64) *apiv1.PlanUpdate {
		return &apiv1.PlanUpdate{Trace: &apiv1.TraceQuestion{Id: id, Request: req.Msg}}
	}
	out := &apiv1.TraceResponse{Results: askAll(names, func(name string) *apiv1.TraceResult {
		reply, err := a.m.ask(ctx, name, ask)
		res := reply.GetTrace().GetResult()
		if err == nil && res == nil {
			err = errNoAnswer
		}
		if err != nil {
			res = &apiv1.TraceResult{Error: err.Error()}
		}
		res.Node = name
		a.m.withoutAgent(res)
		return res
	})}
	return connect.NewResponse(out), nil
}

func traceFaults(req *apiv1.TraceRequest) []lb.Violation {
	_, faults := convert.FromAddr("client", req.GetClient())
	_, more := convert.FromAddr("vip", req.GetVip())
	faults = append(faults, more...)
	if p := req.GetProtocol(); p != lb.TCP.String() && p != lb.UDP.String() {
		faults = append(faults, lb.Violation{Field: "protocol", Value: p, Allowed: "must be tcp or udp"})
	}
	for field, port := range map[string]uint32{"port": req.GetPort(), "client_port": req.GetClientPort()} {
		if port == 0 || port > 65535 {
			faults = append(faults, lb.Violation{Field: field, Value: strconv.Itoa(int(port)), Allowed: "must be 1 to 65535"})
		}
	}
	if !slices.Contains([]string{"", "syn", "ack", "fin", "rst"}, req.GetSegment()) {
		faults = append(faults, lb.Violation{Field: "segment", Value: req.GetSegment(), Allowed: "must be syn, ack, fin or rst"})
	}
	if id := req.GetQuicCid(); len(id) > cid.MaxLength || len(id) > 0 && req.GetProtocol() != lb.UDP.String() {
		faults = append(faults, lb.Violation{Field: "quic_cid", Value: hex.EncodeToString(id), Allowed: "must be at most 20 octets, and left out with protocol tcp"})
	}
	if req.GetVni() >= 1<<24 {
		faults = append(faults, lb.Violation{Field: "vni", Value: strconv.Itoa(int(req.GetVni())), Allowed: "must be 0 to 16777215"})
	}
	return faults
}

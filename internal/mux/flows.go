package mux

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Flows implements agent.Handler. It returns the flows of a VIP's endpoints, of all of them when
// the request has no port.
func (a *Agent) Flows(ctx context.Context, q *apiv1.FlowsRequest) *apiv1.FlowsResult {
	vip, err := netip.ParseAddr(q.GetVip())
	if err != nil {
		return &apiv1.FlowsResult{Error: fmt.Sprintf("flows: vip: %q: must be an IP address", q.GetVip())}
	}
	endpoints := asked(q, a.endpointsOf(vip.Unmap()))
	if len(endpoints) == 0 {
		return &apiv1.FlowsResult{Error: fmt.Sprintf("flows: no endpoint of %v takes %s port %s",
			vip, cmp.Or(q.GetProtocol(), "any protocol's"), cmp.Or(q.GetPort(), "*"))}
	}
	keys := make([]lb.EndpointKey, len(endpoints))
	for i, e := range endpoints {
		keys[i] = e.Key
	}
	most := int(q.GetLimit())
	flows, err := a.o.Tables.Flows(ctx, keys, most+1)
	if err != nil {
		return &apiv1.FlowsResult{Error: err.Error()}
	}
	out := &apiv1.FlowsResult{}
	for i, e := range endpoints {
		for _, f := range flows[i] {
			if len(out.Flows) == most {
				out.Truncated = true
				return out
			}
			out.Flows = append(out.Flows, flowStatus(e, f))
		}
	}
	return out
}

// asked returns the endpoints that a request selects from those of its VIP, which are ordered from
// narrow to wide: all; those with the port as written; or for each protocol the one that receives
// packets to the port.
func asked(q *apiv1.FlowsRequest, endpoints []plan.Endpoint) []plan.Endpoint {
	endpoints = slices.DeleteFunc(endpoints, func(e plan.Endpoint) bool {
		return q.GetProtocol() != "" && q.GetProtocol() != e.Key.Protocol.String()
	})
	if q.GetPort() == "" {
		return endpoints
	}
	var written, taking []plan.Endpoint
	port, _ := strconv.ParseUint(q.GetPort(), 10, 16)
	for _, e := range endpoints {
		if lb.PortsText(e.Key.Port, e.Key.PortEnd) == q.GetPort() {
			written = append(written, e)
		}
		known := slices.ContainsFunc(taking, func(t plan.Endpoint) bool { return t.Key.Protocol == e.Key.Protocol })
		if !known && port > 0 && uint64(e.Key.Port) <= port && port <= uint64(e.Key.PortEnd) {
			taking = append(taking, e)
		}
	}
	if len(written) > 0 {
		return written
	}
	return taking
}

func flowStatus(e plan.Endpoint, f dataplane.Flow) *apiv1.FlowStatus {
	out := &apiv1.FlowStatus{
		Vip: e.Key.VIP.String(), Protocol: e.Key.Protocol.String(), Port: lb.PortsText(e.Key.Port, e.Key.PortEnd), Service: e.Service,
		Member: uint32(f.Member), Class: flowClass(f), Age: durationpb.New(f.Age),
		Packets: f.Packets, Bytes: f.Bytes,
	}
	for _, m := range e.Members {
		if m.ID == f.Member {
			out.Dip, out.DipPort = m.DIP.String(), uint32(m.Port)
		}
	}
	return out
}

// flowClass returns the API's name of a flow's class.
func flowClass(f dataplane.Flow) string {
	switch {
	case f.Tracked && f.Class == dataplane.FlowClosing:
		return "closed"
	case f.Tracked && f.Class == dataplane.FlowUntrusted:
		return "new"
	case f.Tracked:
		return "open"
	case f.Source:
		return "source"
	case f.Class == dataplane.FlowTrusted:
		return "trusted"
	case f.Class == dataplane.FlowClosing:
		return "closing"
	}
	return "untrusted"
}

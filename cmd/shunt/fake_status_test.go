package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

func (f *fakeManager) Status(_ context.Context, r *connect.Request[apiv1.StatusRequest]) (*connect.Response[apiv1.StatusResponse], error) {
	f.status.Revision = f.revision
	out := proto.CloneOf(f.status)
	out.Placements = slices.DeleteFunc(out.Placements, func(p *apiv1.VIPPlacement) bool {
		return r.Msg.GetService() != everyService && p.GetService() != r.Msg.GetService()
	})
	if r.Msg.GetService() == "all" { // the one with datagrams
		out.Warnings = []string{"services/all: endpoints[1]: IPv4 packets of more than 1480 bytes do not arrive"}
	}
	return connect.NewResponse(out), nil
}

func (f *fakeManager) Flows(_ context.Context, r *connect.Request[apiv1.FlowsRequest]) (*connect.Response[apiv1.FlowsResponse], error) {
	flow := &apiv1.FlowStatus{
		Vip: r.Msg.GetVip(), Port: r.Msg.GetPort(), Protocol: "tcp", Service: "web", Dip: "10.20.1.11", DipPort: 8080, Member: 1,
		Class: "trusted", Age: durationpb.New(3 * time.Second),
	}
	return connect.NewResponse(&apiv1.FlowsResponse{Results: []*apiv1.FlowsResult{
		{Node: "mux1", Flows: []*apiv1.FlowStatus{flow}, Truncated: r.Msg.GetLimit() == 1}, {Node: "mux2"},
	}}), nil
}

// HealthOf responds for the first backend: mux1 finds it healthy after failures, its host does not
// respond.
func (f *fakeManager) HealthOf(_ context.Context, r *connect.Request[apiv1.HealthOfRequest]) (*connect.Response[apiv1.HealthOfResponse], error) {
	if r.Msg.GetDip() != "10.20.1.11" {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("backend %s: no service has it", r.Msg.GetDip()))
	}
	at := func(second int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 5_000_000, time.UTC))
	}
	result := func(second int, took time.Duration, good bool, words string) *apiv1.ProbeResult {
		return &apiv1.ProbeResult{Time: at(second), Took: durationpb.New(took), Good: good, Words: words}
	}
	void := result(4, 0, false, "too many open files")
	void.Void = true
	b := &apiv1.BackendHealth{
		Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080, Member: 1,
		Nodes: []*apiv1.NodeHealth{
			{Node: "mux1", Role: "mux", Verdict: "healthy", Since: at(6), Words: "status 200", Checks: []*apiv1.CheckHealth{
				{Check: "tcp", Rise: 2, Fall: 3},
				{Check: "http /healthz", Alive: true, Good: 2, Rise: 2, Fall: 3, Results: []*apiv1.ProbeResult{
					result(3, 500012*time.Microsecond, false, "connected, but no bytes within 500 ms"), void,
					result(5, 812345*time.Nanosecond, true, "status 200"), result(6, 12345*time.Microsecond, true, "status 200"),
				}},
			}},
			{Node: "host1", Role: "host", Error: "did not answer within 1s"},
		},
		History: []*apiv1.HealthChange{
			{Time: at(3), Dip: "10.20.1.11", DipPort: 8080, Verdict: "unhealthy", Node: "mux2", Words: "connected, but no bytes within 500 ms"},
			{Time: at(6), Dip: "10.20.1.11", DipPort: 8080, Verdict: "healthy", Node: "mux1", Words: "status 200"},
		},
	}
	return connect.NewResponse(&apiv1.HealthOfResponse{Backends: []*apiv1.BackendHealth{b}, Truncated: r.Msg.GetService() == ""}), nil
}

func (f *fakeManager) Trace(_ context.Context, r *connect.Request[apiv1.TraceRequest]) (*connect.Response[apiv1.TraceResponse], error) {
	response := &apiv1.TraceResponse{}
	for _, result := range f.traces {
		if r.Msg.GetNode() == "" || r.Msg.GetNode() == result.GetNode() {
			result := proto.Clone(result).(*apiv1.TraceResult)
			if id := r.Msg.GetQuicCid(); len(id) > 0 {
				result.Steps = append([]string{fmt.Sprintf("connection id %x", id)}, result.GetSteps()...)
			}
			result.Steps = append([]string{fmt.Sprintf("%s %s to %s", r.Msg.GetProtocol(), hostPort(r.Msg.GetClient(), r.Msg.GetClientPort()), hostPort(r.Msg.GetVip(), r.Msg.GetPort()))}, result.GetSteps()...)
			response.Results = append(response.Results, result)
		}
	}
	return connect.NewResponse(response), nil
}

// report makes three nodes report on the service of web.yaml: mux1 reports all backends up, mux2
// one down, mux3 is away.
func (f *fakeManager) report() {
	seen := timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	member := func(vip, dip string, id uint32, alive bool, check string) *apiv1.MemberStatus {
		return &apiv1.MemberStatus{Service: "web", Vip: vip, Protocol: "tcp", Port: 80, Dip: dip, DipPort: 8080, Member: id, Alive: alive, LastCheck: check, Packets: 100 * uint64(id), Bytes: 6000 * uint64(id), Weight: 1, Flows: 10 * uint64(id)}
	}
	members := func(second bool, check string) []*apiv1.MemberStatus {
		return []*apiv1.MemberStatus{
			member("2001:db8:f::10", "2001:db8:20:1::11", 1, true, "200 OK"),
			member("203.0.113.10", "10.20.2.11", 2, second, check),
			member("203.0.113.10", "10.20.1.11", 1, true, "200 OK"),
		}
	}
	routes := func(advertised bool) []*apiv1.RouteStatus {
		return []*apiv1.RouteStatus{{Prefix: "203.0.113.10/32", Advertised: true}, {Prefix: "2001:db8:f::10/128", Advertised: advertised}}
	}
	f.status = &apiv1.StatusResponse{Epoch: 3, Nodes: []*apiv1.NodeStatus{
		{Name: "mux2", Role: "mux", Connected: true, LastSeen: seen, SyncedRevision: 1, Error: "rings: table is full", Members: members(false, "connection refused"), Routes: routes(false), Version: "v1.2.3"},
		{Name: "mux1", Role: "mux", Connected: true, LastSeen: seen, SyncedRevision: 2, Members: members(true, "200 OK"), Routes: routes(true), Version: "v1.2.3",
			Processes: []*apiv1.ProcessBuild{
				{Process: "agent", Pid: 812, Version: "v1.2.3", Commit: "0123abcd4567ef890123abcd4567ef890123abcd"},
				{Process: "speaker", Pid: 790, Version: "v1.2.2", Commit: "89ef01234567abcd89ef01234567abcd89ef0123", Kept: "sessions without graceful restart (RFC 4724), whose routers would lose the routes: 10.10.0.1; it is replaced once the mux is drained"},
			},
			Peers:   []*apiv1.PeerStatus{{Address: "10.10.0.1", State: "established", Bfd: "up"}},
			Reasons: []*apiv1.ReasonCount{{Reason: "forwarded", Packets: 300, Class: "tx"}, {Reason: "malformed", Packets: 0, Class: "drop"}, {Reason: "no_backend", Packets: 2}}},
		{Name: "mux3", Role: "mux", LastSeen: seen, SyncedRevision: 1, Members: members(true, "200 OK")[:1], Routes: routes(true)},
		{Name: "host1", Role: "host", Connected: true, LastSeen: seen, SyncedRevision: 2, Members: []*apiv1.MemberStatus{member("203.0.113.10", "10.20.1.11", 1, true, "")}},
		{Name: "host2", Role: "host"},
	}}
	slices.SortFunc(f.status.GetNodes()[0].GetMembers(), func(a, b *apiv1.MemberStatus) int { return cmp.Compare(a.GetDip(), b.GetDip()) })
	f.traces = []*apiv1.TraceResult{
		{Node: "mux1", Verdict: "forwarded", Service: "web", Dip: "10.20.1.11", DipPort: 8080, Member: 1, OuterDestination: "10.20.1.11", Steps: []string{"endpoint web", "slot 17: member 1, alive"}},
		{Node: "mux2", Verdict: "no_backend", Steps: []string{"endpoint web"}},
	}
}

// doubt makes mux2 consider itself isolated, mux1 damp the second backend, and host1 check the
// first.
func (f *fakeManager) doubt() {
	since := func(second int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC))
	}
	for _, n := range f.status.GetNodes() {
		for i, m := range n.GetMembers() {
			switch n.GetName() {
			case "mux1":
				m.Since = since(i)
				if m.GetMember() == 2 {
					m.Alive, m.Damped, m.LastCheck = false, true, "status 200"
				}
			case "mux2":
				n.Suspect, n.Error = true, ""
				m.Alive, m.Held, m.LastCheck = true, m.GetMember() == 1, "no answer to three SYNs within 500 ms"
			case "host1":
				m.Checked, m.Alive, m.Since, m.LastCheck = true, false, since(9), "connection refused"
			}
		}
	}
}

// decide makes the second backend drain and puts the first into slow start.
func (f *fakeManager) decide() {
	at := func(minute int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 2, 3, minute, 5, 0, time.UTC))
	}
	f.status.Decisions = []*apiv1.MemberDecision{
		{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080, Member: 1, Share: 10, Warming: at(4), Warm: at(5)},
		{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.2.11", DipPort: 8080, Member: 2, Backup: true, Down: true, Draining: at(4), Drained: at(14)},
	}
}

// place puts the IPv4 VIP of the service on two muxes, retires it on a third, and leaves the other
// VIP without a mux.
func (f *fakeManager) place() {
	for i, n := range f.status.GetNodes() {
		if n.GetRole() == "mux" {
			n.Vips = uint32(i + 1)
		}
	}
	f.status.Placements = []*apiv1.VIPPlacement{
		{Service: "web", Vip: "203.0.113.10", Replicas: 2, Muxes: []string{"mux1", "mux2"}, Leaving: []string{"mux3"}},
		{Service: "web", Vip: "2001:db8:f::10", Replicas: 2, Missing: "muxes that are up and do not drain: 0"},
	}
}

// withdraw makes mux1 report every revision as applied and advertise no route.
func (f *fakeManager) withdraw() {
	for _, n := range f.status.GetNodes() {
		if n.GetName() == "mux1" {
			n.SyncedRevision, n.Routes = 1000, []*apiv1.RouteStatus{{Prefix: "203.0.113.10/32"}}
			n.Tables = []*apiv1.TableStatus{{Name: "flows"}}
		}
	}
}

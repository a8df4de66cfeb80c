package main

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// lease gives web's servers ports for outbound connections.
func (f *fakeManager) lease() {
	f.status.Snat = []*apiv1.SnatStatus{
		{Service: "web", Tenant: "shop", Vip: "203.0.113.10", Dip: "10.20.1.11", Ports: []uint32{1024, 1032, 2048}},
		{Service: "web", Tenant: "shop", Vip: "203.0.113.10", Dip: "10.20.2.11", Gone: true},
	}
	f.status.SnatVips = []*apiv1.SnatVIPStatus{{
		Service: "web", Tenant: "shop", Vip: "203.0.113.10", Leased: 24, Free: 64480, Resting: 8, DipLimit: 1024, TenantLimit: 8000, TenantLeased: 32,
	}}
}

// AuditSNAT returns a difference at mux2 and no report of host1.
func (f *fakeManager) AuditSNAT(_ context.Context, r *connect.Request[apiv1.AuditSNATRequest]) (*connect.Response[apiv1.AuditSNATResponse], error) {
	nodes := []*apiv1.SnatNodeAudit{
		{Node: "host1", Role: "host", Error: "did not answer within 2s"},
		{Node: "mux1", Role: "mux", Revision: 70, Vips: 1, Ranges: 2, Moving: 1},
		{Node: "mux2", Role: "mux", Revision: 71, Vips: 1, Ranges: 3, Different: 2, Differences: []*apiv1.SnatDifference{
			{Vip: "203.0.113.10", Port: 1032, Stored: "10.20.1.11"}, {Vip: "203.0.113.10", Port: 2048, Stored: "10.20.1.11", Said: "10.20.2.11"},
		}},
	}
	if r.Msg.GetService() != "" {
		nodes = nodes[:2]
	}
	return connect.NewResponse(&apiv1.AuditSNATResponse{Nodes: nodes}), nil
}

// ReleaseSNAT accepts one server of out, which has 64 ports.
func (f *fakeManager) ReleaseSNAT(_ context.Context, r *connect.Request[apiv1.ReleaseSNATRequest]) (*connect.Response[apiv1.ReleaseSNATResponse], error) {
	q := r.Msg
	switch {
	case q.GetService() != "out":
		return nil, connect.NewError(connect.CodeNotFound, errors.New("services/"+q.GetService()+": not found"))
	case q.GetForce():
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("10.20.1.11: its host is not connected"))
	case q.GetKeep() >= 64:
		return connect.NewResponse(&apiv1.ReleaseSNATResponse{}), nil
	}
	return connect.NewResponse(&apiv1.ReleaseSNATResponse{Released: []*apiv1.ReleasedSNAT{{Vip: "203.0.113.60", Dip: "10.20.1.11", Ports: 64 - q.GetKeep()}}}), nil
}

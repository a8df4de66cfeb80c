package main

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// Events sends the events one by one and ends. Every second stream that follows ends with a
// refusal.
func (f *fakeManager) Events(_ context.Context, r *connect.Request[apiv1.EventsRequest], s *connect.ServerStream[apiv1.EventsResponse]) error {
	for _, e := range f.events {
		wanted := (r.Msg.GetKind() == "" || r.Msg.GetKind() == e.GetKind()) && (r.Msg.GetName() == "" || r.Msg.GetName() == e.GetName())
		if !wanted || e.GetTime().AsTime().Before(r.Msg.GetSince().AsTime()) {
			continue
		}
		if err := s.Send(&apiv1.EventsResponse{Events: []*apiv1.Event{e}}); err != nil {
			return err
		}
	}
	if r.Msg.GetFollow() {
		if f.streams++; f.streams%2 == 0 {
			return errRevokedToken
		}
	}
	return nil
}

func (f *fakeManager) Audit(_ context.Context, r *connect.Request[apiv1.AuditRequest]) (*connect.Response[apiv1.AuditResponse], error) {
	if f.fail != nil {
		return nil, f.fail
	}
	out := &apiv1.AuditResponse{}
	for _, e := range f.audit {
		if (e.GetRefused() != "" || !r.Msg.GetRefused()) && !e.GetTime().AsTime().Before(r.Msg.GetSince().AsTime()) {
			out.Entries = append(out.Entries, e)
		}
	}
	if n := int(r.Msg.GetLimit()); n > 0 && n < len(out.GetEntries()) {
		out.Entries = out.GetEntries()[len(out.GetEntries())-n:]
	}
	return connect.NewResponse(out), nil
}

// happen adds events: a service loses backends, a node reconnects, users change objects and are
// refused.
func (f *fakeManager) happen() {
	at := func(second int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC))
	}
	f.events = []*apiv1.Event{
		{Time: at(0), Kind: "Manager", Name: "m1", Reason: "LeaderChanged", Severity: "info", Message: "leads from epoch 3 on", Count: 1},
		{Time: at(1), Kind: "Service", Name: "web", Tenant: "shop", Reason: "Applied", Severity: "info", Message: "created by admin", Count: 1, Revision: 12},
		{Time: at(2), Kind: "Node", Name: "mux1", Reason: "NodeConnected", Severity: "info", Message: "mux of version v1.2.3 is connected", Count: 1},
		{Time: at(3), Kind: "Service", Name: "web", Tenant: "shop", Reason: "BackendDown", Severity: "warning", Message: "1 of 2 backends down: 10.20.2.11:8080; 1 healthy", Count: 3},
	}
	f.audit = []*apiv1.AuditEntry{
		{Time: at(1), Who: "admin", Role: "admin", From: "192.0.2.7:40112", Call: "Apply", What: []string{"networks/dc1 created", "nodes/host1 created", "nodes/mux1 created", "services/web created"}, Revision: 12, Count: 1},
		{Time: at(4), Who: "token ci", Role: "tenant", From: "192.0.2.8:51000", Call: "Delete", What: []string{"services/api"}, Refused: "services/api: belongs to tenant other", Count: 17},
	}
}

package main

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// keySets returns the key sets of web: cookies whose new epoch waits for muxes, and connection ids
// with a retained epoch.
func keySets() []*apiv1.KeySet {
	at := func(hours int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(hours) * time.Hour))
	}
	epochs := func(mints int) []*apiv1.KeyEpoch {
		return []*apiv1.KeyEpoch{{Epoch: 1, Made: at(-200), Mints: mints == 0}, {Epoch: 2, Made: at(-1), Mints: mints == 1}}
	}
	return []*apiv1.KeySet{
		{Purpose: "cookie", Scope: "203.0.113.10", Service: "web", Phase: "spread", Since: at(-1), Epochs: epochs(0), WaitsFor: []string{"mux2", "mux3"}, Waits: 5},
		{Purpose: "cookie", Scope: "203.0.113.11", Service: "web", Phase: "steady", Since: at(-100), Epochs: epochs(0)[:1], Due: at(0)},
		{Purpose: "cid", Scope: "web", Service: "web", Phase: "rest", Since: at(-1), Epochs: epochs(1), Due: at(23)},
		{Purpose: "cookie", Scope: "203.0.113.12", Service: "old", Phase: "steady", Since: at(-100), Epochs: epochs(0)[:1], Idle: true},
	}
}

// ListKeys implements the API.
func (f *fakeManager) ListKeys(_ context.Context, r *connect.Request[apiv1.ListKeysRequest]) (*connect.Response[apiv1.ListKeysResponse], error) {
	all := keySets()
	if len(r.Msg.GetScopes()) > 0 {
		all = all[:3]
	}
	for _, k := range all {
		for i, e := range k.GetEpochs() { // tables print ages
			e.Made = timestamppb.New(time.Now().Add(-time.Duration(200-199*i)*time.Hour - 30*time.Minute - 30*time.Second))
		}
	}
	return connect.NewResponse(&apiv1.ListKeysResponse{Keys: all}), f.called()
}

// RotateKeys implements the API.
func (f *fakeManager) RotateKeys(_ context.Context, r *connect.Request[apiv1.RotateKeysRequest]) (*connect.Response[apiv1.RotateKeysResponse], error) {
	out, all := &apiv1.RotateKeysResponse{Revision: 7}, keySets()
	out.Keys = all[:1]
	if r.Msg.GetAll() {
		out.Waiting = all[2:3]
		out.Waiting[0].Wrong = "must wait until 2026-01-03T02:04:05Z: until then epoch 1 is read beside epoch 2"
	}
	return connect.NewResponse(out), f.called()
}

// RotateRing implements the API.
func (f *fakeManager) RotateRing(_ context.Context, r *connect.Request[apiv1.RotateRingRequest]) (*connect.Response[apiv1.RotateRingResponse], error) {
	out := &apiv1.RotateRingResponse{Revision: 8, Endpoints: 3}
	if r.Msg.GetForce() {
		out.Moved = []string{"web: 203.0.113.10 tcp 80"}
	}
	return connect.NewResponse(out), f.called()
}

// RotateCA implements the API. A new replacement refuses a node that is away, unless it is left
// out, and then waits for a mux.
func (f *fakeManager) RotateCA(_ context.Context, r *connect.Request[apiv1.RotateCARequest]) (*connect.Response[apiv1.RotateCAResponse], error) {
	if err := f.called(); err != nil {
		return nil, err
	}
	q := r.Msg
	if q.GetBegin() && len(q.GetWithout()) == 0 {
		return nil, refuse([]lb.Violation{{Field: "nodes/mux9", Allowed: "is away: bring it back, or leave it out (--without mux9): then it needs a new join token afterwards"}})
	}
	at := timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	out := &apiv1.RotateCAResponse{Ca: f.ca}
	if q.GetBegin() {
		f.caBegun = true
	}
	if f.caBegun {
		out.Phase, out.Began, out.Since, out.Without, out.Through, out.Former, out.Next = "trust", at, at, []string{"mux9"}, "issue", "0123", "4567"
		out.Waits, out.Waiting = []*apiv1.CAWait{{Kind: "node", Name: "mux2", Reason: "does not accept certificates of the new CA yet"}}, 120
	}
	return connect.NewResponse(out), nil
}

// QUICConfig implements the API.
func (f *fakeManager) QUICConfig(_ context.Context, r *connect.Request[apiv1.QUICConfigRequest]) (*connect.Response[apiv1.QUICConfigResponse], error) {
	configs := func(member byte) []*apiv1.QUICServerConfig {
		one := func(id uint32, active bool) *apiv1.QUICServerConfig {
			return &apiv1.QUICServerConfig{Id: id, Format: "quiclb", Key: []byte("0123456789abcdef"), ServerId: []byte{member, 0x20, 0}, NonceLength: 13, Active: active}
		}
		return []*apiv1.QUICServerConfig{one(1, false), one(2, true)}
	}
	all := []*apiv1.QUICServer{
		{Vip: "203.0.113.10", Port: "443", Dip: "10.20.1.11", DipPort: 8443, CidLength: 17, Configs: configs(0)},
		{Vip: "203.0.113.10", Port: "444", Dip: "10.20.1.11", DipPort: 8443, CidLength: 17, Configs: configs(1)},
		{Vip: "203.0.113.11", Port: "443", Dip: "10.20.1.11", DipPort: 8443, CidLength: 17, Configs: configs(0)},
		{Vip: "203.0.113.10", Port: "445", Dip: "10.20.2.11", DipPort: 8443, Configs: []*apiv1.QUICServerConfig{{Format: "mvfst", ServerId: []byte{0, 0x10, 0}, Active: true}}},
	}
	if r.Msg.GetBackend() != "" {
		all = all[:3]
	}
	return connect.NewResponse(&apiv1.QUICConfigResponse{Servers: all}), f.called()
}

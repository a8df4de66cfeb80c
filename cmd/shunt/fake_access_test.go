package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
)

func (f *fakeManager) CreateToken(_ context.Context, r *connect.Request[apiv1.CreateTokenRequest]) (*connect.Response[apiv1.CreateTokenResponse], error) {
	return connect.NewResponse(&apiv1.CreateTokenResponse{
		Token:   fmt.Sprintf("shunt1.%s.%s.secret", r.Msg.GetNode(), r.Msg.GetRole()),
		Expires: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(r.Msg.GetTtl().AsDuration())),
	}), nil
}

// accessAt is the creation time of the fake's access tokens.
var accessAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// CreateAccess responds without storing anything.
func (f *fakeManager) CreateAccess(_ context.Context, r *connect.Request[apiv1.CreateAccessRequest]) (*connect.Response[apiv1.CreateAccessResponse], error) {
	a := &apiv1.Access{
		Id: "0123456789abcdef", Name: r.Msg.GetName(), Role: r.Msg.GetRole(), Tenant: r.Msg.GetTenant(),
		Created: timestamppb.New(accessAt), Expires: timestamppb.New(accessAt.Add(r.Msg.GetTtl().AsDuration())),
	}
	return connect.NewResponse(&apiv1.CreateAccessResponse{Token: "shunt_" + a.Id + "_secret", Access: a}), nil
}

// CreateCertificate signs nothing.
func (f *fakeManager) CreateCertificate(_ context.Context, r *connect.Request[apiv1.CreateCertificateRequest]) (*connect.Response[apiv1.CreateCertificateResponse], error) {
	if err := pki.CheckRequest(r.Msg.GetCsr()); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if r.Msg.GetTenant() == "gone" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("tenant: gone: must be the name of a Tenant, and there is none of this name"))
	}
	a := &apiv1.Access{
		Id: "0123456789abcdef", Name: r.Msg.GetName(), Role: r.Msg.GetRole(), Tenant: r.Msg.GetTenant(), Via: "certificate",
		Created: timestamppb.New(accessAt), Expires: timestamppb.New(accessAt.Add(r.Msg.GetTtl().AsDuration())),
	}
	return connect.NewResponse(&apiv1.CreateCertificateResponse{Certificate: []byte("CERTIFICATE\n"), Access: a}), nil
}

// ListAccess returns a tenant's token, named by the caller's Authorization header if there is one,
// and an admin certificate.
func (f *fakeManager) ListAccess(_ context.Context, r *connect.Request[apiv1.ListAccessRequest]) (*connect.Response[apiv1.ListAccessResponse], error) {
	name := "ci"
	if h := r.Header().Get("Authorization"); h != "" {
		name = h
	}
	return connect.NewResponse(&apiv1.ListAccessResponse{Access: []*apiv1.Access{
		{Id: "0123456789abcdef", Name: name, Role: "tenant", Tenant: "shop", Created: timestamppb.New(accessAt), Expires: timestamppb.New(accessAt.Add(time.Hour))},
		{Id: "fedcba9876543210", Name: "ann", Role: "admin", Created: timestamppb.New(accessAt), Expires: timestamppb.New(accessAt.Add(time.Hour)), Via: "certificate"},
	}}), nil
}

// RevokeAccess accepts one token id.
func (f *fakeManager) RevokeAccess(_ context.Context, r *connect.Request[apiv1.RevokeAccessRequest]) (*connect.Response[apiv1.RevokeAccessResponse], error) {
	if r.Msg.GetId() != "0123456789abcdef" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("access "+r.Msg.GetId()+": not found"))
	}
	return connect.NewResponse(&apiv1.RevokeAccessResponse{}), nil
}

package manager

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// CreateAccess implements the API.
func (api) CreateAccess(context.Context, *connect.Request[apiv1.CreateAccessRequest]) (*connect.Response[apiv1.CreateAccessResponse], error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("CreateAccess: "+lb.NotSupported))
}

// ListAccess implements the API.
func (api) ListAccess(context.Context, *connect.Request[apiv1.ListAccessRequest]) (*connect.Response[apiv1.ListAccessResponse], error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("ListAccess: "+lb.NotSupported))
}

// RevokeAccess implements the API.
func (api) RevokeAccess(context.Context, *connect.Request[apiv1.RevokeAccessRequest]) (*connect.Response[apiv1.RevokeAccessResponse], error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("RevokeAccess: "+lb.NotSupported))
}

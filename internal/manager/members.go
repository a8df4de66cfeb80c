package manager

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// Members implements the API.
func (api) Members(context.Context, *connect.Request[apiv1.MembersRequest]) (*connect.Response[apiv1.MembersResponse], error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("Members: "+lb.NotSupported))
}

// RemoveMember implements the API.
func (api) RemoveMember(context.Context, *connect.Request[apiv1.RemoveMemberRequest]) (*connect.Response[apiv1.RemoveMemberResponse], error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("RemoveMember: "+lb.NotSupported))
}

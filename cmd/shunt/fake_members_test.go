package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

func (f *fakeManager) Version(context.Context, *connect.Request[apiv1.VersionRequest]) (*connect.Response[apiv1.VersionResponse], error) {
	if f.fail != nil {
		return nil, f.fail
	}
	return connect.NewResponse(&apiv1.VersionResponse{Version: "v1.2.3", Commit: "0123abcd"}), nil
}

func (f *fakeManager) Members(context.Context, *connect.Request[apiv1.MembersRequest]) (*connect.Response[apiv1.MembersResponse], error) {
	if f.fail != nil {
		return nil, f.fail
	}
	return connect.NewResponse(f.members), nil
}

func (f *fakeManager) RemoveMember(_ context.Context, r *connect.Request[apiv1.RemoveMemberRequest]) (*connect.Response[apiv1.RemoveMemberResponse], error) {
	at := slices.IndexFunc(f.members.GetMembers(), func(m *apiv1.Member) bool { return m.GetName() == r.Msg.GetName() })
	switch {
	case at < 0:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("manager %s: not found", r.Msg.GetName()))
	case f.members.GetMembers()[at].GetHealthy():
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("remove %s: the others would be no majority", r.Msg.GetName()))
	}
	f.members.Members = slices.Delete(f.members.Members, at, at+1)
	return connect.NewResponse(&apiv1.RemoveMemberResponse{}), nil
}

// Backup sends a truncated backup.
func (f *fakeManager) Backup(_ context.Context, _ *connect.Request[apiv1.BackupRequest], stream *connect.ServerStream[apiv1.BackupResponse]) error {
	if f.fail != nil {
		return f.fail
	}
	content, err := os.ReadFile("cut.backup")
	if err != nil {
		return err
	}
	return stream.Send(&apiv1.BackupResponse{Chunk: content})
}

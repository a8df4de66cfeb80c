package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

func (f *fakeManager) Get(_ context.Context, r *connect.Request[apiv1.GetRequest]) (*connect.Response[apiv1.GetResponse], error) {
	if err := f.called(); err != nil {
		return nil, err
	}
	kind := lb.Kind(r.Msg.GetKind())
	response := &apiv1.GetResponse{Revision: f.revision}
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(f.objects))) {
		if strings.HasPrefix(key, kind.Plural()+"/") && (r.Msg.GetName() == "" || key == lb.Ref(kind, r.Msg.GetName())) {
			response.Objects = append(response.Objects, f.objects[key])
		}
	}
	if r.Msg.GetName() != "" && len(response.GetObjects()) == 0 {
		return nil, connect.NewError(connect.CodeNotFound, errors.New(lb.Ref(kind, r.Msg.GetName())+": not found"))
	}
	return connect.NewResponse(response), nil
}

// errRevokedToken ends every second watch.
var errRevokedToken = connect.NewError(connect.CodeUnauthenticated, errors.New("the access token was revoked"))

// Watch sends the present objects and a change of each kind, and ends. The next watch finds the
// first object changed and the last of several removed, and ends with a refusal.
func (f *fakeManager) Watch(_ context.Context, r *connect.Request[apiv1.WatchRequest], s *connect.ServerStream[apiv1.WatchResponse]) error {
	if err := f.called(); err != nil {
		return err
	}
	kind := lb.Kind(r.Msg.GetKind())
	var present []*apiv1.Object
	for _, key := range slices.Sorted(maps.Keys(f.objects)) {
		if strings.HasPrefix(key, kind.Plural()+"/") {
			present = append(present, f.objects[key])
		}
	}
	if f.streams++; f.streams%2 == 0 {
		present[0] = proto.CloneOf(present[0])
		present[0].Revision++
		if err := s.Send(&apiv1.WatchResponse{Revision: f.revision + 3, Upserted: present[:max(1, len(present)-1)], Synced: true}); err != nil {
			return err
		}
		return errRevokedToken
	}
	if err := s.Send(&apiv1.WatchResponse{Revision: f.revision, Upserted: present, Synced: true}); err != nil {
		return err
	}
	return s.Send(&apiv1.WatchResponse{Revision: f.revision + 1, Deleted: []*apiv1.ObjectRef{{Kind: r.Msg.GetKind(), Name: "old"}}})
}

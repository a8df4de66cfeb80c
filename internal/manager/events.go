package manager

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// event notes that something happened to an object. It never blocks.
func (m *Manager) event(e *apiv1.Event) {
	m.o.Log.Info(e.GetMessage(), "event", e.GetReason(), "object", lb.Ref(lb.Kind(e.GetKind()), e.GetName()))
}

// Events implements the API.
func (api) Events(context.Context, *connect.Request[apiv1.EventsRequest], *connect.ServerStream[apiv1.EventsResponse]) error {
	return connect.NewError(connect.CodeUnimplemented, errors.New("Events: "+lb.NotSupported))
}

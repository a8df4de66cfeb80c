package manager

import (
	"context"
	"maps"
	"slices"
	"sync"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
)

// observer is one Watch call, with the changes that were not sent yet.
type observer struct {
	wants func(ref) bool
	// by is the caller. An object that a tenant may not see is reported as deleted, and costs no
	// more than that. scope.changes filters out objects that were never sent.
	by    identity
	mu    sync.Mutex
	dirty map[ref]bool
	wake  chan struct{} // room for one
}

// note implements subscriber.
func (o *observer) note(c change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range c.objects {
		if o.wants(r) {
			o.dirty[r] = true
		}
	}
	if len(o.dirty) > 0 {
		notify.Send(o.wake)
	}
}

// response returns the newest versions of changed objects. A slow reader misses intermediate
// versions, but never the last one.
func (o *observer) response(v *view) *apiv1.WatchResponse {
	revision, dirty := o.take(v)
	out := &apiv1.WatchResponse{Revision: revision, Synced: true}
	for _, r := range slices.SortedFunc(maps.Keys(dirty), compareRefs) {
		if rec := dirty[r]; rec != nil && o.by.seesRecord(rec) {
			out.Upserted = append(out.Upserted, rec.shown())
		} else {
			out.Deleted = append(out.Deleted, &apiv1.ObjectRef{Kind: string(r.kind), Name: r.name})
		}
	}
	return out
}

// take returns the changed objects with their newest records, nil for deleted ones, and clears the
// set.
func (o *observer) take(v *view) (revision int64, changed map[ref]*record) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	changed = make(map[ref]*record, len(o.dirty))
	for r := range o.dirty {
		changed[r] = v.records[r]
	}
	o.dirty = map[ref]bool{}
	return v.planRev, changed
}

// Watch implements the API. An empty kind watches all kinds. The first response is the current
// state.
func (a api) Watch(ctx context.Context, req *connect.Request[apiv1.WatchRequest], stream *connect.ServerStream[apiv1.WatchResponse]) error {
	kind, name := lb.Kind(req.Msg.GetKind()), req.Msg.GetName()
	if kind != "" {
		if _, err := parseKind("kind", string(kind)); err != nil {
			return fault(err)
		}
	}
	o := &observer{dirty: map[ref]bool{}, wake: make(chan struct{}, 1), by: identityOf(ctx), wants: func(r ref) bool {
		return (kind == "" || r.kind == kind) && (name == "" || r.name == name)
	}}
	a.m.view.subscribeAll(o)
	defer a.m.view.unsubscribe(o)
	for {
		done, err := takeTurn(ctx)
		if err != nil {
			return fault(err)
		}
		res := o.response(a.m.view)
		done()
		if err := stream.Send(res); err != nil {
			return err
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return nil
		case <-a.m.ctx.Done():
			return connect.NewError(connect.CodeUnavailable, context.Cause(a.m.ctx))
		}
	}
}

// subscribeAll subscribes the observer and marks every existing object as changed.
func (v *view) subscribeAll(o *observer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.subscribers[o] = true
	for r := range v.records {
		if o.wants(r) {
			o.dirty[r] = true
		}
	}
}

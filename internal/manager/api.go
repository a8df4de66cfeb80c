package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// api serves the Manager service.
type api struct{ m *Manager }

// Apply implements the API.
func (a api) Apply(ctx context.Context, req *connect.Request[apiv1.ApplyRequest]) (*connect.Response[apiv1.ApplyResponse], error) {
	if ends := req.Msg.GetPrune() && req.Msg.GetSource() != ""; len(req.Msg.GetObjects()) == 0 && !ends {
		return nil, fault(invalid{[]lb.Violation{{Field: "objects", Allowed: "must not be empty, unless source and prune are set: that ends the source"}}})
	}
	res, err := a.m.applyAll(ctx, req.Msg)
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(res), nil
}

// Delete implements the API.
func (a api) Delete(ctx context.Context, req *connect.Request[apiv1.DeleteRequest]) (*connect.Response[apiv1.DeleteResponse], error) {
	if len(req.Msg.GetObjects()) == 0 {
		return nil, fault(invalid{[]lb.Violation{{Field: "objects", Allowed: "must not be empty"}}})
	}
	var refs []ref
	for i, o := range req.Msg.GetObjects() {
		kind, err := parseKind(fmt.Sprintf("objects[%d].kind", i), o.GetKind())
		if err != nil {
			return nil, fault(err)
		}
		refs = append(refs, ref{kind, o.GetName()})
	}
	rev, changes, err := a.m.remove(ctx, refs, req.Msg.GetDryRun(), req.Msg.GetForce())
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(&apiv1.DeleteResponse{Revision: rev, Changes: changes}), nil
}

// Get implements the API.
func (a api) Get(ctx context.Context, req *connect.Request[apiv1.GetRequest]) (*connect.Response[apiv1.GetResponse], error) {
	kind, err := parseKind("kind", req.Msg.GetKind())
	if err != nil {
		return nil, fault(err)
	}
	// For a request by name, the interceptor checks the response.
	sees := func(r *record) bool { return req.Msg.GetName() != "" || identityOf(ctx).seesRecord(r) }
	rev, objs := a.m.view.objectsThat(sees, kind, req.Msg.GetName())
	if len(objs) == 0 && req.Msg.GetName() != "" {
		return nil, fault(notFound{ref{kind, req.Msg.GetName()}})
	}
	return connect.NewResponse(&apiv1.GetResponse{Revision: rev, Objects: objs}), nil
}

// Version implements the API.
func (a api) Version(context.Context, *connect.Request[apiv1.VersionRequest]) (*connect.Response[apiv1.VersionResponse], error) {
	return connect.NewResponse(&apiv1.VersionResponse{Version: a.m.o.Version, Commit: a.m.o.Commit}), nil
}

// objects returns the objects of a kind, ordered by name: all of them if the name is empty.
func (v *view) objects(kind lb.Kind, name string) (revision int64, out []*apiv1.Object) {
	return v.objectsThat(func(*record) bool { return true }, kind, name)
}

// objectsThat returns those objects whose records satisfy fits.
func (v *view) objectsThat(fits func(*record) bool, kind lb.Kind, name string) (revision int64, out []*apiv1.Object) {
	revision, found := v.recordsOf(kind, name)
	found = only(found, fits)
	slices.SortFunc(found, func(a, b *record) int { return compareRefs(refOf(a.obj), refOf(b.obj)) })
	for _, r := range found {
		out = append(out, r.shown())
	}
	return revision, out
}

// recordsOf returns the records of a kind, or of one object.
func (v *view) recordsOf(kind lb.Kind, name string) (revision int64, out []*record) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if name != "" {
		if rec := v.records[ref{kind, name}]; rec != nil {
			out = append(out, rec)
		}
		return v.planRev, out
	}
	for r, rec := range v.records {
		if r.kind == kind {
			out = append(out, rec)
		}
	}
	return v.planRev, out
}

func parseKind(field, s string) (lb.Kind, error) {
	if !slices.Contains(lb.Kinds, lb.Kind(s)) {
		return "", invalid{[]lb.Violation{{Field: field, Value: s, Allowed: lb.AllowedKind + lb.MeantFor(s, lb.KindNames())}}}
	}
	return lb.Kind(s), nil
}

// fault returns an error with its code, and with its violations as details.
func fault(err error) error {
	var inv invalid
	var nf notFound
	var st stale
	var con conflict
	var na noAccess
	var refusal *connect.Error
	var unled notLeading
	var over overReach
	switch {
	case errors.As(err, &over):
		return overReach{fault(over.says), over.cause}
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &unled) && !errors.Is(err, context.Canceled):
		out := connect.NewError(connect.CodeUnavailable, err)
		out.Meta().Set(headerNotLeading, "1")
		return out
	case errors.As(err, &inv):
		return detailed(connect.CodeInvalidArgument, inv.faults)
	case errors.As(err, &con):
		return detailed(connect.CodeFailedPrecondition, con.faults)
	case errors.Is(err, store.ErrNoSpace):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.As(err, &nf), errors.As(err, &na):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.As(err, &st):
		return connect.NewError(connect.CodeAborted, err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	}
	return connect.NewError(connect.CodeUnavailable, err)
}

// Bounds of the faults in a response, because a request with faults may be large.
const (
	maxFaults     = 1000
	maxFaultBytes = 1000
)

// detailed returns an error with a detail for each of its first maxFaults faults.
func detailed(code connect.Code, faults []lb.Violation) error {
	told := make([]lb.Violation, min(len(faults), maxFaults))
	for i := range told {
		f := faults[i]
		told[i] = lb.Violation{Field: clipFault(f.Field), Value: clipFault(f.Value), Allowed: clipFault(f.Allowed)}
	}
	said := told[0].String()
	if more := len(faults) - 1; more > 0 {
		said = fmt.Sprintf("%s (and %d more)", said, more)
	}
	out := connect.NewError(code, errors.New(said))
	for _, f := range told {
		if d, err := connect.NewErrorDetail(&apiv1.Violation{Field: f.Field, Value: f.Value, Allowed: f.Allowed}); err == nil {
			out.AddDetail(d)
		}
	}
	return out
}

func clipFault(s string) string {
	if len(s) <= maxFaultBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxFaultBytes], "") + "…"
}

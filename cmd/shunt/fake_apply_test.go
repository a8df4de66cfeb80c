package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/fields"
	"github.com/shuntlb/shunt/internal/lb"
)

func (f *fakeManager) Apply(_ context.Context, r *connect.Request[apiv1.ApplyRequest]) (*connect.Response[apiv1.ApplyResponse], error) {
	if err := f.called(); err != nil {
		return nil, err
	}
	f.applied++
	if meddle := f.meddle; meddle != nil {
		f.meddle = nil
		meddle()
	}
	next := maps.Clone(f.objects)
	response := &apiv1.ApplyResponse{Revision: f.revision}
	for _, o := range r.Msg.GetObjects() {
		said, faults := convert.Said(o, 0)
		if len(faults) > 0 {
			return nil, refuse(faults)
		}
		ref := lb.Ref(said.Object.Kind(), said.Object.ObjectName())
		if read := o.GetRevision(); read != 0 && read != next[ref].GetRevision() {
			return nil, connect.NewError(connect.CodeAborted, errors.New(ref+": changed since it was read"))
		}
		change, err := merge(next[ref], said, cmp.Or(r.Msg.GetSource(), "apply"), r.Msg.GetForce())
		if err != nil {
			return nil, err
		}
		response.Changes = append(response.Changes, change)
		next[ref] = change.After
	}
	if faults := lb.ValidateState(domain(next)); len(faults) > 0 {
		return nil, refuse(faults)
	}
	if !r.Msg.GetDryRun() {
		f.commit(next, response.GetChanges())
	}
	response.Revision = f.revision
	return connect.NewResponse(response), nil
}

// merge applies a statement to one object as a manager does. before is nil if there is none.
func merge(before *apiv1.Object, said convert.Statement, source string, force bool) (*apiv1.Change, error) {
	present, owners := said.Content.ProtoReflect().New().Interface(), convert.FromOwners(before.GetOwners())
	if before != nil {
		set := fields.Set{}
		for _, o := range owners {
			for _, path := range o.Fields {
				set[path] = struct{}{}
			}
		}
		present = convert.Schema.Select(convert.Content(before), set)
	}
	content, owned, conflicts := convert.Schema.Apply(present, owners, said.Content, source, force)
	ref := lb.Ref(said.Object.Kind(), said.Object.ObjectName())
	if len(conflicts) > 0 {
		c := conflicts[0]
		err := connect.NewError(connect.CodeFailedPrecondition, errors.New("conflicts"))
		detail, wrong := connect.NewErrorDetail(&apiv1.Violation{Field: ref + ": " + c.Wanted.Path, Value: c.Wanted.Text(), Allowed: "must be " + c.Present.Text() + ", as " + c.Owners[0] + " says, which owns it; force takes it over"})
		if wrong != nil {
			return nil, wrong
		}
		err.AddDetail(detail)
		return nil, err
	}
	object, faults := convert.FromObject(convert.WithContent(content), 0)
	if len(faults) == 0 {
		faults = lb.Validate(object)
	}
	if len(faults) > 0 {
		return nil, refuse(faults)
	}
	change := &apiv1.Change{Kind: string(object.Kind()), Name: object.ObjectName(), Before: before, After: convert.ToObject(object), Action: apiv1.Change_ACTION_CREATED}
	owned = convert.Schema.Expand(content, owned)
	change.After.Owners = convert.ToOwners(owned)
	if before != nil {
		old, _ := convert.FromObject(before, 0)
		change.Action = apiv1.Change_ACTION_UPDATED
		change.After.Generation = before.GetGeneration()
		if lb.Equal(old, object) && slices.EqualFunc(owned, owners, fields.Owner.Equal) {
			change.Action, change.After = apiv1.Change_ACTION_UNCHANGED, before
		}
	}
	return change, nil
}

// commit makes next the state and gives changed objects its revision.
func (f *fakeManager) commit(next map[string]*apiv1.Object, changes []*apiv1.Change) {
	f.objects = next
	f.revision++
	for _, ch := range changes {
		if ch.GetAction() != apiv1.Change_ACTION_UNCHANGED && ch.GetAfter() != nil {
			ch.After.Revision, ch.After.Generation = f.revision, ch.After.GetGeneration()+1
		}
	}
}

func (f *fakeManager) Delete(_ context.Context, r *connect.Request[apiv1.DeleteRequest]) (*connect.Response[apiv1.DeleteResponse], error) {
	next := maps.Clone(f.objects)
	response := &apiv1.DeleteResponse{}
	for _, ref := range r.Msg.GetObjects() {
		key := lb.Ref(lb.Kind(ref.GetKind()), ref.GetName())
		if next[key] == nil {
			return nil, connect.NewError(connect.CodeNotFound, errors.New(key+": not found"))
		}
		response.Changes = append(response.Changes, &apiv1.Change{Kind: ref.GetKind(), Name: ref.GetName(), Action: apiv1.Change_ACTION_DELETED, Before: next[key]})
		delete(next, key)
	}
	state := lb.NewState()
	for _, o := range domain(f.objects) {
		state.Apply(lb.PutEdit(o))
	}
	var edits []lb.Edit
	for _, ref := range r.Msg.GetObjects() {
		edits = append(edits, lb.Edit{Kind: lb.Kind(ref.GetKind()), Name: ref.GetName()})
	}
	if faults := state.Missed(edits...); len(faults) > 0 {
		return nil, refuse(faults)
	}
	if faults := state.Check(edits...); len(faults) > 0 {
		return nil, refuse(faults)
	}
	if !r.Msg.GetDryRun() {
		f.commit(next, response.GetChanges())
	}
	response.Revision = f.revision
	return connect.NewResponse(response), nil
}

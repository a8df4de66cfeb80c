package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/fields"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// fakeManager keeps objects in a map and reports what the test says.
type fakeManager struct {
	shuntv1connect.UnimplementedManagerHandler
	revision int64
	objects  map[string]*apiv1.Object // by lb.Ref
	status   *apiv1.StatusResponse
	traces   []*apiv1.TraceResult
	members  *apiv1.MembersResponse
	events   []*apiv1.Event
	audit    []*apiv1.AuditEntry
	fail     error // of every call
	// meddle is another person's change, made once, just before the next Apply.
	meddle func()
	url    string
	server *httptest.Server
	// streams counts the watches of objects and events.
	streams int
	// applied counts the calls of Apply.
	applied int
	// before runs before every call; its error is the answer.
	before func() error
}

// startFake serves a fake manager over TLS and makes it the configured one.
func startFake(t *testing.T) *fakeManager {
	t.Helper()
	return startFakes(t, 1)[0]
}

// startFakes serves several fake managers of one CA, and makes them the configured ones, in order.
func startFakes(t *testing.T, n int) []*fakeManager {
	t.Helper()
	ca := newTestCA(t)
	var all []*fakeManager
	var text strings.Builder
	text.WriteString("server:\n")
	for range n {
		fake := &fakeManager{objects: map[string]*apiv1.Object{}, status: &apiv1.StatusResponse{}, members: &apiv1.MembersResponse{Members: []*apiv1.Member{
			{Name: "m1", Address: "10.99.0.11:8443", Peer: "10.99.0.11:8444", Leader: true, Healthy: true, Version: "v1.2.3", Revision: 42, Nodes: 7},
			{Name: "m2", Address: "10.99.0.12:8443", Peer: "10.99.0.12:8444", Healthy: true, Version: "v1.2.3", Revision: 41, Nodes: 3},
		}}}
		mux := http.NewServeMux()
		mux.Handle(shuntv1connect.NewManagerHandler(fake))
		fake.server = httptest.NewUnstartedServer(mux)
		fake.server.EnableHTTP2 = true
		fake.server.TLS = ca.server(t)
		fake.server.StartTLS()
		t.Cleanup(fake.server.Close)
		fake.url = fake.server.URL
		fmt.Fprintf(&text, "- %s\n", fake.url)
		all = append(all, fake)
	}
	text.WriteString("ca: |\n")
	for line := range strings.Lines(string(ca.CertPEM())) {
		text.WriteString("  " + line)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(configVariable, file)
	t.Setenv(tokenVariable, "")
	return all
}

// testCA signs the certificates of fake managers, which have no name but the one of every manager.
type testCA struct{ *pki.CA }

func newTestCA(t *testing.T) testCA {
	t.Helper()
	ca, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return testCA{ca}
}

func (ca testCA) server(t *testing.T) *tls.Config {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Manager("m", key, nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2", "http/1.1"}}
}

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

// merge does to one object what a manager does; before is nil when there is none.
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

// commit makes next the state and gives what changed its revision.
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

// called is the error that the test wants of a call.
func (f *fakeManager) called() error {
	if f.before != nil {
		if err := f.before(); err != nil {
			return err
		}
	}
	return f.fail
}

// errRevokedToken ends every second watch.
var errRevokedToken = connect.NewError(connect.CodeUnauthenticated, errors.New("the access token was revoked"))

// Watch sends what is there, a change of each sort, and ends. The next one finds the first object changed and the last of
// several gone, and ends with a refusal.
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

func (f *fakeManager) Status(_ context.Context, r *connect.Request[apiv1.StatusRequest]) (*connect.Response[apiv1.StatusResponse], error) {
	f.status.Revision = f.revision
	out := proto.CloneOf(f.status)
	out.Placements = slices.DeleteFunc(out.Placements, func(p *apiv1.VIPPlacement) bool { return p.GetService() != r.Msg.GetService() })
	return connect.NewResponse(out), nil
}

func (f *fakeManager) Flows(_ context.Context, r *connect.Request[apiv1.FlowsRequest]) (*connect.Response[apiv1.FlowsResponse], error) {
	flow := &apiv1.FlowStatus{
		Vip: r.Msg.GetVip(), Port: r.Msg.GetPort(), Protocol: "tcp", Service: "web", Dip: "10.20.1.11", DipPort: 8080, Member: 1,
		Class: "trusted", Age: durationpb.New(3 * time.Second),
	}
	return connect.NewResponse(&apiv1.FlowsResponse{Results: []*apiv1.FlowsResult{
		{Node: "mux1", Flows: []*apiv1.FlowStatus{flow}, Truncated: r.Msg.GetLimit() == 1}, {Node: "mux2"},
	}}), nil
}

func (f *fakeManager) Trace(_ context.Context, r *connect.Request[apiv1.TraceRequest]) (*connect.Response[apiv1.TraceResponse], error) {
	response := &apiv1.TraceResponse{}
	for _, result := range f.traces {
		if r.Msg.GetNode() == "" || r.Msg.GetNode() == result.GetNode() {
			result := proto.Clone(result).(*apiv1.TraceResult)
			result.Steps = append([]string{fmt.Sprintf("%s %s to %s", r.Msg.GetProtocol(), hostPort(r.Msg.GetClient(), r.Msg.GetClientPort()), hostPort(r.Msg.GetVip(), r.Msg.GetPort()))}, result.GetSteps()...)
			response.Results = append(response.Results, result)
		}
	}
	return connect.NewResponse(response), nil
}

// Events sends what happened one by one and ends. Every second one that follows ends with a refusal.
func (f *fakeManager) Events(_ context.Context, r *connect.Request[apiv1.EventsRequest], s *connect.ServerStream[apiv1.EventsResponse]) error {
	for _, e := range f.events {
		wanted := (r.Msg.GetKind() == "" || r.Msg.GetKind() == e.GetKind()) && (r.Msg.GetName() == "" || r.Msg.GetName() == e.GetName())
		if !wanted || e.GetTime().AsTime().Before(r.Msg.GetSince().AsTime()) {
			continue
		}
		if err := s.Send(&apiv1.EventsResponse{Events: []*apiv1.Event{e}}); err != nil {
			return err
		}
	}
	if r.Msg.GetFollow() {
		if f.streams++; f.streams%2 == 0 {
			return errRevokedToken
		}
	}
	return nil
}

// Backup sends what is cut.
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

func (f *fakeManager) Audit(_ context.Context, r *connect.Request[apiv1.AuditRequest]) (*connect.Response[apiv1.AuditResponse], error) {
	if f.fail != nil {
		return nil, f.fail
	}
	out := &apiv1.AuditResponse{}
	for _, e := range f.audit {
		if (e.GetRefused() != "" || !r.Msg.GetRefused()) && !e.GetTime().AsTime().Before(r.Msg.GetSince().AsTime()) {
			out.Entries = append(out.Entries, e)
		}
	}
	if n := int(r.Msg.GetLimit()); n > 0 && n < len(out.GetEntries()) {
		out.Entries = out.GetEntries()[len(out.GetEntries())-n:]
	}
	return connect.NewResponse(out), nil
}

func (f *fakeManager) CreateToken(_ context.Context, r *connect.Request[apiv1.CreateTokenRequest]) (*connect.Response[apiv1.CreateTokenResponse], error) {
	return connect.NewResponse(&apiv1.CreateTokenResponse{
		Token:   fmt.Sprintf("shunt1.%s.%s.secret", r.Msg.GetNode(), r.Msg.GetRole()),
		Expires: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(r.Msg.GetTtl().AsDuration())),
	}), nil
}

// accessAt is when access tokens of the fake are made.
var accessAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// CreateAccess answers without keeping anything.
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

// ListAccess has one of a tenant, and shows who asks.
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

// RevokeAccess knows one token.
func (f *fakeManager) RevokeAccess(_ context.Context, r *connect.Request[apiv1.RevokeAccessRequest]) (*connect.Response[apiv1.RevokeAccessResponse], error) {
	if r.Msg.GetId() != "0123456789abcdef" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("access "+r.Msg.GetId()+": not found"))
	}
	return connect.NewResponse(&apiv1.RevokeAccessResponse{}), nil
}

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

// refuse is INVALID_ARGUMENT with a detail per fault, as a manager says it.
func refuse(faults []lb.Violation) error {
	err := connect.NewError(connect.CodeInvalidArgument, errors.New("invalid objects"))
	for _, v := range faults {
		detail, wrong := connect.NewErrorDetail(&apiv1.Violation{Field: v.Field, Value: v.Value, Allowed: v.Allowed})
		if wrong != nil {
			return wrong
		}
		err.AddDetail(detail)
	}
	return err
}

func domain(objects map[string]*apiv1.Object) []lb.Object {
	var out []lb.Object
	for _, o := range objects {
		object, _ := convert.FromObject(o, 0)
		out = append(out, object)
	}
	return out
}

// report makes three nodes report on the service of web.yaml: mux1 sees all up, mux2 one down, mux3 is away.
func (f *fakeManager) report() {
	seen := timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	member := func(vip, dip string, id uint32, alive bool, check string) *apiv1.MemberStatus {
		return &apiv1.MemberStatus{Service: "web", Vip: vip, Protocol: "tcp", Port: 80, Dip: dip, DipPort: 8080, Member: id, Alive: alive, LastCheck: check, Packets: 100 * uint64(id), Bytes: 6000 * uint64(id), Weight: 1, Flows: 10 * uint64(id)}
	}
	members := func(second bool, check string) []*apiv1.MemberStatus {
		return []*apiv1.MemberStatus{
			member("2001:db8:f::10", "2001:db8:20:1::11", 1, true, "200 OK"),
			member("203.0.113.10", "10.20.2.11", 2, second, check),
			member("203.0.113.10", "10.20.1.11", 1, true, "200 OK"),
		}
	}
	routes := func(advertised bool) []*apiv1.RouteStatus {
		return []*apiv1.RouteStatus{{Prefix: "203.0.113.10/32", Advertised: true}, {Prefix: "2001:db8:f::10/128", Advertised: advertised}}
	}
	f.status = &apiv1.StatusResponse{Epoch: 3, Nodes: []*apiv1.NodeStatus{
		{Name: "mux2", Role: "mux", Connected: true, LastSeen: seen, SyncedRevision: 1, Error: "rings: table is full", Members: members(false, "connection refused"), Routes: routes(false), Version: "v1.2.3"},
		{Name: "mux1", Role: "mux", Connected: true, LastSeen: seen, SyncedRevision: 2, Members: members(true, "200 OK"), Routes: routes(true), Version: "v1.2.3",
			Peers:   []*apiv1.PeerStatus{{Address: "10.10.0.1", State: "established", Bfd: "up"}},
			Reasons: []*apiv1.ReasonCount{{Reason: "forwarded", Packets: 300}, {Reason: "malformed", Packets: 0}, {Reason: "no_backend", Packets: 2}}},
		{Name: "mux3", Role: "mux", LastSeen: seen, SyncedRevision: 1, Members: members(true, "200 OK")[:1], Routes: routes(true)},
		{Name: "host1", Role: "host", Connected: true, LastSeen: seen, SyncedRevision: 2, Members: []*apiv1.MemberStatus{member("203.0.113.10", "10.20.1.11", 1, true, "")}},
		{Name: "host2", Role: "host"},
	}}
	slices.SortFunc(f.status.GetNodes()[0].GetMembers(), func(a, b *apiv1.MemberStatus) int { return cmp.Compare(a.GetDip(), b.GetDip()) })
	f.traces = []*apiv1.TraceResult{
		{Node: "mux1", Verdict: "forwarded", Service: "web", Dip: "10.20.1.11", DipPort: 8080, Member: 1, OuterDestination: "10.20.1.11", Steps: []string{"endpoint web", "slot 17: member 1, alive"}},
		{Node: "mux2", Verdict: "no_backend", Steps: []string{"endpoint web"}},
	}
}

// decide makes the second backend drain and the first one grow.
func (f *fakeManager) decide() {
	at := func(minute int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 2, 3, minute, 5, 0, time.UTC))
	}
	f.status.Decisions = []*apiv1.MemberDecision{
		{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080, Member: 1, Share: 10, Warming: at(4), Warm: at(5)},
		{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.2.11", DipPort: 8080, Member: 2, Backup: true, Down: true, Draining: at(4), Drained: at(14)},
	}
}

// place puts the IPv4 VIP of the service on two muxes, which leaves a third, and has no mux for the other one.
func (f *fakeManager) place() {
	for i, n := range f.status.GetNodes() {
		if n.GetRole() == "mux" {
			n.Vips = uint32(i + 1)
		}
	}
	f.status.Placements = []*apiv1.VIPPlacement{
		{Service: "web", Vip: "203.0.113.10", Replicas: 2, Muxes: []string{"mux1", "mux2"}, Leaving: []string{"mux3"}},
		{Service: "web", Vip: "2001:db8:f::10", Replicas: 2, Missing: "muxes that are up and do not drain: 0"},
	}
}

// happen makes a service lose backends, a node come back, and people change and be refused things.
func (f *fakeManager) happen() {
	at := func(second int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC))
	}
	f.events = []*apiv1.Event{
		{Time: at(0), Kind: "Manager", Name: "m1", Reason: "LeaderChanged", Severity: "info", Message: "leads from epoch 3 on", Count: 1},
		{Time: at(1), Kind: "Service", Name: "web", Tenant: "shop", Reason: "Applied", Severity: "info", Message: "created by admin", Count: 1, Revision: 12},
		{Time: at(2), Kind: "Node", Name: "mux1", Reason: "NodeConnected", Severity: "info", Message: "mux of version v1.2.3 is connected", Count: 1},
		{Time: at(3), Kind: "Service", Name: "web", Tenant: "shop", Reason: "BackendDown", Severity: "warning", Message: "1 of 2 backends down: 10.20.2.11:8080; 1 healthy", Count: 3},
	}
	f.audit = []*apiv1.AuditEntry{
		{Time: at(1), Who: "admin", Role: "admin", From: "192.0.2.7:40112", Call: "Apply", What: []string{"networks/dc1 created", "nodes/host1 created", "nodes/mux1 created", "services/web created"}, Revision: 12, Count: 1},
		{Time: at(4), Who: "token ci", Role: "tenant", From: "192.0.2.8:51000", Call: "Delete", What: []string{"services/api"}, Refused: "services/api: belongs to tenant other", Count: 17},
	}
}

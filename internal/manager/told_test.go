package manager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
)

// happens follows events until one fits, and returns it with the texts of all events before it.
func happens(t *testing.T, c shuntv1connect.ManagerClient, req *apiv1.EventsRequest, fits func(*apiv1.Event) bool) (*apiv1.Event, []string) {
	t.Helper()
	req.Follow = true
	s, err := c.Events(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var before []string
	for s.Receive() {
		for _, e := range s.Msg().GetEvents() {
			if fits(e) {
				return e, before
			}
			before = append(before, fmt.Sprintf("%s %s %s", e.GetKind(), e.GetName(), e.GetReason()))
		}
	}
	t.Fatalf("the stream ended after %q: %v", before, s.Err())
	return nil, nil
}

func withReason(reason string) func(*apiv1.Event) bool {
	return func(e *apiv1.Event) bool { return e.GetReason() == reason }
}

// refusals returns the refusals in the audit log, once it has as many as expected.
func (r *rig) refusals(want int) []*apiv1.AuditEntry {
	r.t.Helper()
	return r.refusalsUntil(func(all []*apiv1.AuditEntry) bool { return len(all) >= want })
}

// refusalsUntil returns the refusals in the audit log once they fit. Entries are written only as
// time passes, so a fake clock is advanced.
func (r *rig) refusalsUntil(fits func([]*apiv1.AuditEntry) bool) []*apiv1.AuditEntry {
	r.t.Helper()
	for tries := 0; ; tries++ {
		res, err := r.admin.Audit(r.t.Context(), connect.NewRequest(&apiv1.AuditRequest{Refused: true}))
		if err != nil {
			r.t.Fatal(err)
		}
		if fits(res.Msg.GetEntries()) {
			return res.Msg.GetEntries()
		}
		if tries == maxTries {
			r.t.Fatalf("refusals in the audit log are still %v", res.Msg.GetEntries())
		}
		if fake, ok := r.clock.(*clock.Fake); ok {
			fake.Advance(100 * time.Millisecond)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// TestQuotasAreToldAndAudited: both kinds of quotas are reported, to the tenant too, and audited.
func TestQuotasAreToldAndAudited(t *testing.T) {
	r := newRigAt(t, store.NewMemory(), clock.System{})
	shop := tenant("shop", 1)
	shop.Quotas.Services = 1
	r.apply(network(), hostNode(1), shop, ofTenant("shop-web", "shop", 10))
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	if err := applyAs(t, ann, ofTenant("shop-api", "shop", 11)); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Fatalf("a second service: %v", err)
	}
	e, _ := happens(t, ann, &apiv1.EventsRequest{Kind: "Tenant", Name: "shop"}, withReason("QuotaRefused"))
	if e.GetMessage() != "quotas.services: 2 services: must be at most 1, the tenant's quota" || e.GetSeverity() != "warning" {
		t.Errorf("the event: %v", e)
	}
	if err := applyAs(t, ann, ofTenant("shop-web", "shop", 12)); err != nil {
		t.Fatal(err)
	}
	if err := applyAs(t, ann, ofTenant("shop-web", "shop", 13)); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Fatalf("a second change: %v", err)
	}
	happens(t, r.admin, &apiv1.EventsRequest{Kind: "Tenant", Name: "shop"}, func(e *apiv1.Event) bool {
		return e.GetMessage() == "quotas.changes: 1 a minute are used up"
	})
	for i, refused := range r.refusals(2) {
		want := []string{"tenants/shop: quotas.services: 2 services: must be at most 1", "quotas.changes: 1 a minute are used up"}[i]
		if !strings.Contains(refused.GetRefused(), want) || refused.GetWho() != "token ann" || refused.GetCall() != "Apply" || refused.GetRole() != "tenant" {
			t.Errorf("refusal %d: %v, want %q", i, refused, want)
		}
	}
}

// TestMaskedRefusalsAreAudited: the error for another tenant's object is that it does not exist, or
// that its name is taken. The audit log has the true cause.
func TestMaskedRefusalsAreAudited(t *testing.T) {
	r, ann := shops(t)
	if err := deleteAs(t, ann, "Service", "nothing"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatal(err)
	}
	if err := deleteAs(t, ann, "Service", "media-web"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatal(err)
	}
	if err := applyAs(t, ann, ofTenant("media-web", "shop", 30)); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Fatal(err)
	}
	var got []string
	for _, e := range r.refusals(2) {
		got = append(got, e.GetCall()+" "+e.GetRefused())
	}
	want := []string{"Delete services/media-web: not found (it is another tenant's)", "Apply services/media-web: the name is taken, choose another (it is another tenant's)"}
	if !slices.Equal(got, want) {
		t.Errorf("refusals: %q, want %q", got, want)
	}
}

// TestMaskedReadsAreAudited: a request for another tenant's object is audited, one for a missing
// object is not.
func TestMaskedReadsAreAudited(t *testing.T) {
	r, ann := shops(t)
	ctx := t.Context()
	get := func(kind, name string) error {
		_, err := ann.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: kind, Name: name}))
		return err
	}
	drained := func(s interface {
		Receive() bool
		Err() error
	}, err error) error {
		for err == nil && s.Receive() {
		}
		return errors.Join(err, s.Err())
	}
	asks := []struct {
		want string
		ask  func(name, vip string) error
	}{
		{"Get services/media-web: not found (it is another tenant's)", func(name, _ string) error { return get("Service", name) }},
		{"Get policies/media-web: not found (it is another tenant's)", func(name, _ string) error { return get("Policy", name) }},
		{"Status nodes/media-web: not found (it is the operator's)", func(name, _ string) error {
			_, err := ann.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Node: name}))
			return err
		}},
		{"Status services/media-web: not found (it is another tenant's)", func(name, _ string) error {
			_, err := ann.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Service: name}))
			return err
		}},
		{"Trace vip: 203.0.113.20: no service of tenant shop has it (it is another tenant's)", func(_, vip string) error {
			_, err := ann.Trace(ctx, connect.NewRequest(&apiv1.TraceRequest{Client: "192.0.2.1", Vip: vip, Port: 80, Protocol: "tcp"}))
			return err
		}},
		{"Flows vip: 203.0.113.20: no service of tenant shop has it (it is another tenant's)", func(_, vip string) error {
			_, err := ann.Flows(ctx, connect.NewRequest(&apiv1.FlowsRequest{Vip: vip}))
			return err
		}},
		{"HealthOf backend 10.20.1.11: services/media-web has no such backend (it is another tenant's)", func(name, _ string) error {
			_, err := ann.HealthOf(ctx, connect.NewRequest(&apiv1.HealthOfRequest{Dip: "10.20.1.11", Service: name}))
			return err
		}},
		{"Events services/media-web: not found (it is another tenant's)", func(name, _ string) error {
			s, err := ann.Events(ctx, connect.NewRequest(&apiv1.EventsRequest{Kind: "Service", Name: name}))
			return drained(s, err)
		}},
		{"Watch services/media-web: not found (it is another tenant's)", func(name, _ string) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			s, err := ann.Watch(ctx, connect.NewRequest(&apiv1.WatchRequest{Kind: "Service", Name: name}))
			if err == nil && !s.Receive() {
				return s.Err()
			}
			return err
		}},
	}
	media := muxNode(1)
	media.Name, media.Addresses = "media-web", muxNode(7).Addresses
	r.apply(media, policy("media-web", "media"))
	for i, c := range asks {
		// A request for a missing object has the same answer, and is not audited.
		nothing, another := c.ask("nothing", "203.0.113.99"), c.ask("media-web", "203.0.113.20")
		if connect.CodeOf(nothing) != connect.CodeOf(another) || nothing == nil != (another == nil) {
			t.Errorf("%s: of nothing %v, of another's %v", c.want, nothing, another)
		}
		all := r.refusals(i + 1)
		if e := all[i]; len(all) != i+1 || e.GetCall()+" "+e.GetRefused() != c.want || e.GetWho() != "token ann" || e.GetRole() != "tenant" || e.GetFrom() == "" {
			t.Fatalf("the audit log has %v, want %q last", all, c.want)
		}
	}
}

// TestTenantFollowsItsOwnEvents: a tenant's stream has the events of its own objects, and none of
// others.
func TestTenantFollowsItsOwnEvents(t *testing.T) {
	r, ann := shops(t)
	r.apply(ofTenant("media-web", "media", 21), ofTenant("shop-web", "shop", 11), muxNode(2))
	r.join("mux1", "mux")
	last := func(e *apiv1.Event) bool { return e.GetName() == "shop-last" }
	told := make(chan []string)
	for _, req := range []*apiv1.EventsRequest{{}, {Kind: "Service"}, {Kind: "Service", Name: "media-web"}, {Kind: "Node"}} {
		go func() {
			if req.GetName() != "" || req.GetKind() == "Node" {
				res, err := ann.Events(t.Context(), connect.NewRequest(req))
				if err != nil {
					t.Error(err)
				}
				var got []string
				for err == nil && res.Receive() {
					for _, e := range res.Msg().GetEvents() {
						got = append(got, e.GetName())
					}
				}
				told <- got
				return
			}
			_, before := happens(t, ann, req, last)
			told <- before
		}()
	}
	for range 3 { // others' events while the streams are open
		r.apply(ofTenant("media-web", "media", 22))
		r.apply(ofTenant("media-web", "media", 21))
	}
	r.apply(ofTenant("shop-last", "shop", 12))
	for range 4 {
		for _, line := range <-told {
			if !strings.Contains(line, " shop") {
				t.Errorf("tenant shop hears %q", line)
			}
		}
	}
}

// TestManagersThatJoinAndLeaveAreTold: the leader records events for them, and the audit log has
// them.
func TestManagersThatJoinAndLeaveAreTold(t *testing.T) {
	first := newEtcdRig(t, "m1", t.TempDir(), freePeer(t), nil)
	second := newEtcdRig(t, "m2", t.TempDir(), freePeer(t), joining(t, first.rig, "m2"))
	of := &apiv1.EventsRequest{Kind: "Manager", Name: "m2"}
	happens(t, second.admin, of, withReason("ManagerUp"))
	if e, _ := happens(t, second.admin, of, withReason("MemberJoined")); e.GetMessage() != "joined with a token from 127.0.0.1" {
		t.Errorf("the event: %v", e)
	}
	if _, err := first.admin.RemoveMember(t.Context(), connect.NewRequest(&apiv1.RemoveMemberRequest{Name: "m2"})); err != nil {
		t.Fatal(err)
	}
	second.stop()
	if e, _ := happens(t, first.admin, of, withReason("MemberLeft")); e.GetMessage() != "was removed by admin" || e.GetSeverity() != "warning" {
		t.Errorf("the event: %v", e)
	}
	want := map[string]string{"Admit": "managers/m2 admitted", "RemoveMember": "managers/m2 removed"}
	for tries := 0; len(want) > 0; tries++ {
		res, err := first.admin.Audit(t.Context(), connect.NewRequest(&apiv1.AuditRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res.Msg.GetEntries() {
			if e.GetCall() != "" && want[e.GetCall()] == strings.Join(e.GetWhat(), ", ") && e.GetFrom() != "" && e.GetWho() != "" {
				delete(want, e.GetCall())
			}
		}
		if tries == maxTries {
			t.Fatalf("the audit log lacks %v: %v", want, res.Msg)
		}
		<-time.After(10 * time.Millisecond)
	}
}

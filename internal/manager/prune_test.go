package manager_test

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

func named(name, vip string) *apiv1.Object {
	return &apiv1.Object{Kind: &apiv1.Object_Service{Service: &apiv1.Service{Name: name, Vip: []string{vip}, Endpoints: []*apiv1.Endpoint{
		{Protocol: "tcp", Port: "80", Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}, Port: 8080, Host: "10.20.1.1"}}},
	}}}}
}

// services lists the names of all services.
func (r *rig) services() []string {
	r.t.Helper()
	res, err := r.admin.Get(r.t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Service"}))
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, o := range res.Msg.GetObjects() {
		out = append(out, o.GetService().GetName())
	}
	return out
}

// TestPrune: a source that applies all of its objects removes those that it made and no longer
// lists, including additions of others, and none that others made or made as well.
func TestPrune(t *testing.T) {
	r := newOwnerRig(t)
	prune := func(dryRun bool, objects ...*apiv1.Object) *apiv1.ApplyResponse {
		t.Helper()
		res, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Source: "file", Prune: true, DryRun: dryRun, Objects: objects}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg
	}
	one, two, three := named("one", "203.0.113.101"), named("two", "203.0.113.102"), named("three", "203.0.113.103")
	prune(false, one, two, three)
	r.says("operator", named("other", "203.0.113.104").GetService())
	r.says("operator", three.GetService())
	r.says("drain", &apiv1.Service{Name: "two", Endpoints: []*apiv1.Endpoint{{Protocol: "tcp", Port: "80", Backends: []*apiv1.Backend{
		{Dip: []string{"10.20.1.11"}, Port: 8080, Drain: true},
	}}}})
	before := r.services()
	for _, dryRun := range []bool{true, false} {
		res := prune(dryRun, one)
		var gone []string
		for _, ch := range res.GetChanges() {
			if ch.GetAction() == apiv1.Change_ACTION_DELETED {
				gone = append(gone, ch.GetKind()+"/"+ch.GetName())
			}
		}
		if !slices.Equal(gone, []string{"Service/two"}) {
			t.Fatalf("dry run %v: deleted %q", dryRun, gone)
		}
		if now := r.services(); dryRun && !slices.Equal(now, before) {
			t.Fatalf("a dry run left %q of %q", now, before)
		}
	}
	if got, want := r.services(), []string{"one", "other", "three"}; !slices.Equal(got, want) {
		t.Fatalf("left %q, want %q", got, want)
	}
}

// TestSourceEnds: objects that a source made are removed, and its fields of others' objects are
// withdrawn. The others' own fields stay. A source on which others depend cannot end.
func TestSourceEnds(t *testing.T) {
	r := newOwnerRig(t)
	r.says("", file(1, 2))
	weights := drained(2)
	weights.Endpoints[0].Backends[0] = &apiv1.Backend{Dip: []string{"10.20.2.11"}, Port: 8080, Weight: proto.Uint32(3)}
	r.says("scaler", weights)
	r.says("drain", drained(2))
	r.says("scaler", named("own", "203.0.113.101").GetService())
	end := func(source string, dryRun bool) (*apiv1.ApplyResponse, error) {
		res, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Source: source, Prune: true, DryRun: dryRun}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	for _, dryRun := range []bool{true, false} {
		res, err := end("scaler", dryRun)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ch := range res.GetChanges() {
			got = append(got, ch.GetName()+" "+ch.GetAction().String())
		}
		if want := []string{"own ACTION_DELETED", "web ACTION_UPDATED"}; !slices.Equal(got, want) {
			t.Fatalf("dry run %v: %q, want %q", dryRun, got, want)
		}
	}
	web, err := r.admin.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Service", Name: "web"}))
	if err != nil {
		t.Fatal(err)
	}
	o := web.Msg.GetObjects()[0]
	if b := o.GetService().GetEndpoints()[0].GetBackends()[1]; b.GetWeight() != 1 || !b.GetDrain() || owned(o, "scaler") != nil {
		t.Errorf("left: %v", o)
	}
	if res, err := end("scaler", false); err != nil || len(res.GetChanges()) != 0 {
		t.Errorf("once more: %v, %v", res.GetChanges(), err)
	}
	// The service is made by another source, and has no endpoint except the source's.
	r.says("pages", &apiv1.Service{Name: "web", Vip: []string{"203.0.113.10"}})
	if _, err := end("apply", false); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a source without which a service cannot be: %v", err)
	}
	for _, req := range []*apiv1.ApplyRequest{{}, {Prune: true}, {Source: "scaler"}} {
		if _, err := r.admin.Apply(t.Context(), connect.NewRequest(req)); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v, want it refused", req, err)
		}
	}
}

// TestTenantsPrune: a tenant's file removes the objects that it made, but neither its Tenant nor
// another tenant's objects, which the operator made by a source of the same name.
func TestTenantsPrune(t *testing.T) {
	r := newOwnerRig(t)
	r.apply(&lb.Tenant{Name: "shop"}, &lb.Tenant{Name: "bank"})
	of := func(tenant, name, vip string) *apiv1.Object {
		o := named(name, vip)
		o.GetService().Tenant = tenant
		return o
	}
	one, two := of("shop", "one", "203.0.113.101"), of("shop", "two", "203.0.113.102")
	if _, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{one, two, of("bank", "three", "203.0.113.103")}})); err != nil {
		t.Fatal(err)
	}
	shop := r.bearer(r.access("s", "tenant", "shop", 0).Token)
	res, err := shop.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Prune: true, Objects: []*apiv1.Object{one}}))
	if err != nil {
		t.Fatal(err)
	}
	if ch := res.Msg.GetChanges(); len(ch) != 2 || ch[1].GetName() != "two" || ch[1].GetAction() != apiv1.Change_ACTION_DELETED {
		t.Errorf("changes %v", ch)
	}
	if left := r.services(); slices.Contains(left, "two") || !slices.Contains(left, "three") {
		t.Errorf("services %v", left)
	}
}

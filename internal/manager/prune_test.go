package manager_test

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

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

// TestPrune: a source that says everything takes away what it made and does not say any more, what others added to that
// included, and nothing that others made or made as well.
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

// TestTenantsPrune: a tenant's file takes away what it made, and neither its Tenant nor another tenant's objects, which the operator made
// by a source of the same name.
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

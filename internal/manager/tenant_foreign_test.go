package manager_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// TestTenantOwnsNothingOfItsTenant: a tenant may apply its Tenant unchanged, with any source. The
// operator can still change and delete it.
func TestTenantOwnsNothingOfItsTenant(t *testing.T) {
	r, ann := shops(t)
	for source, o := range map[string]*apiv1.Object{
		"": convert.ToObject(tenant("shop", 0)), "mine": convert.ToObject(tenant("shop", 0)), "name": convert.ToObject(&lb.Tenant{Name: "shop"}),
	} {
		for _, force := range []bool{false, true} {
			res, err := ann.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Source: source, Force: force, Objects: []*apiv1.Object{o}}))
			if source == "name" && err != nil {
				continue // an omitted field has another value by default
			}
			if err != nil || res.Msg.GetChanges()[0].GetAction() != apiv1.Change_ACTION_UNCHANGED {
				t.Errorf("source %q: %v, %v, want it unchanged", source, res, err)
			}
		}
	}
	if got := r.get("Tenant", "shop")[0].GetOwners(); len(got) != 1 || got[0].GetSource() != "apply" {
		t.Errorf("owners %v, want the operator's source alone", got)
	}
	less := tenant("shop", 0)
	less.VIPs = less.VIPs[:1]
	less.Shared[0].VIPs = less.VIPs
	r.apply(less)
}

// TestPoliciesOfATenantAreBounded: a tenant may have as many policies as services.
func TestPoliciesOfATenantAreBounded(t *testing.T) {
	r, ann := shops(t)
	few := tenant("shop", 0)
	few.Quotas.Services = 2
	r.apply(few)
	if err := applyAs(t, ann, policy("shop-two", "shop")); err != nil {
		t.Fatal(err)
	}
	want := "objects: 3 policies: must be at most 2: tenants/shop may have as many policies as services (quotas.services)"
	if got := violations(t, applyAs(t, ann, policy("shop-three", "shop"))); len(got) != 1 || got[0] != want {
		t.Errorf("a third one: %q, want %q", got, want)
	}
	if err := applyAs(t, ann, policy("shop-two", "shop")); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	if err := deleteAs(t, ann, "Policy", "shop-two"); err != nil {
		t.Error(err)
	}
	if err := applyAs(t, ann, policy("shop-three", "shop")); err != nil {
		t.Errorf("one in the place of another: %v", err)
	}
}

// TestTenantReachesNothingOfOthers: for a caller of role tenant, every call that names an object,
// VIP, server or node of another tenant or of the operator is refused, and its reads contain none
// of them. The state is unchanged.
func TestTenantReachesNothingOfOthers(t *testing.T) {
	r := newRig(t, store.NewMemory())
	theirs := ofTenant("media-web", "media", 33)
	theirs.Endpoints[0].Backends = []lb.Backend{backend(2)}
	theirs.SNAT = []lb.SNATServer{{DIP: theirs.Endpoints[0].Backends[0].DIPs[0]}}
	lb.SetDefaults(theirs)
	r.apply(network(), muxNode(1), hostNode(1), hostNode(2), owning("shop", "1", "16"), owning("media", "2", "32"), ofTenant("shop-web", "shop", 17), theirs)
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	apply := func(o lb.Object) func(shuntv1connect.ManagerClient) error {
		return func(c shuntv1connect.ManagerClient) error { return applyAs(t, c, o) }
	}
	taken := ofTenant("media-web", "shop", 33)
	policy := &lb.Policy{Name: "media-sources", Sources: &lb.Sources{Deny: prefixes("192.0.2.0/24")}}
	before := r.services()
	for name, call := range map[string]func(shuntv1connect.ManagerClient) error{
		"apply another's service":            apply(theirs),
		"apply another's service as its own": apply(taken),
		"apply for another tenant":           apply(ofTenant("shop-two", "media", 18)),
		"apply a node":                       apply(muxNode(2)),
		"apply a network":                    apply(network()),
		"more VIPs for its own Tenant":       apply(owning("shop", "1", "64")),
		"apply another Tenant":               apply(owning("media", "2", "32")),
		"apply a policy of nobody":           apply(policy),
		"delete another's service":           func(c shuntv1connect.ManagerClient) error { return deleteAs(t, c, "Service", "media-web") },
		"delete a node":                      func(c shuntv1connect.ManagerClient) error { return deleteAs(t, c, "Node", "host2") },
		"delete another Tenant":              func(c shuntv1connect.ManagerClient) error { return deleteAs(t, c, "Tenant", "media") },
		"release another's ports": func(c shuntv1connect.ManagerClient) error {
			_, err := c.ReleaseSNAT(t.Context(), connect.NewRequest(&apiv1.ReleaseSNATRequest{Service: "media-web", Force: true}))
			return err
		},
		"release another's server": func(c shuntv1connect.ManagerClient) error {
			_, err := c.ReleaseSNAT(t.Context(), connect.NewRequest(&apiv1.ReleaseSNATRequest{Service: "shop-web", Dip: "10.20.2.11", Force: true}))
			return err
		},
		"rotate another's keys": func(c shuntv1connect.ManagerClient) error {
			_, err := c.RotateKeys(t.Context(), connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: []string{"203.0.113.33"}}))
			return err
		},
		"rotate another's ring": func(c shuntv1connect.ManagerClient) error {
			_, err := c.RotateRing(t.Context(), connect.NewRequest(&apiv1.RotateRingRequest{Scopes: []string{"media-web"}, Force: true}))
			return err
		},
		"rotate the ring of all": func(c shuntv1connect.ManagerClient) error {
			_, err := c.RotateRing(t.Context(), connect.NewRequest(&apiv1.RotateRingRequest{All: true, Force: true}))
			return err
		},
		"trace another's VIP": func(c shuntv1connect.ManagerClient) error {
			_, err := c.Trace(t.Context(), connect.NewRequest(&apiv1.TraceRequest{Client: "198.51.100.1", ClientPort: 1, Vip: "203.0.113.33", Port: 80, Protocol: "tcp"}))
			return err
		},
		"flows of another's VIP": func(c shuntv1connect.ManagerClient) error {
			_, err := c.Flows(t.Context(), connect.NewRequest(&apiv1.FlowsRequest{Vip: "203.0.113.33", Port: "80", Protocol: "tcp"}))
			return err
		},
		"health of another's service": func(c shuntv1connect.ManagerClient) error {
			_, err := c.HealthOf(t.Context(), connect.NewRequest(&apiv1.HealthOfRequest{Service: "media-web"}))
			return err
		},
		"connection ids of another's service": func(c shuntv1connect.ManagerClient) error {
			_, err := c.QUICConfig(t.Context(), connect.NewRequest(&apiv1.QUICConfigRequest{Service: "media-web"}))
			return err
		},
		"a join token": func(c shuntv1connect.ManagerClient) error {
			_, err := c.CreateToken(t.Context(), connect.NewRequest(&apiv1.CreateTokenRequest{Node: "mux1", Role: "mux"}))
			return err
		},
		"access for another tenant": func(c shuntv1connect.ManagerClient) error {
			_, err := c.CreateAccess(t.Context(), connect.NewRequest(&apiv1.CreateAccessRequest{Name: "eve", Role: "tenant", Tenant: "media"}))
			return err
		},
		"a manager's removal": func(c shuntv1connect.ManagerClient) error {
			_, err := c.RemoveMember(t.Context(), connect.NewRequest(&apiv1.RemoveMemberRequest{Name: "m1"}))
			return err
		},
	} {
		err := call(ann)
		switch code := connect.CodeOf(err); {
		case err == nil:
			t.Errorf("%s: is not refused", name)
		case code != connect.CodeNotFound && code != connect.CodePermissionDenied && code != connect.CodeInvalidArgument && code != connect.CodeAlreadyExists:
			t.Errorf("%s: %v", name, err)
		case strings.Contains(err.Error(), "tenants/media has") || strings.Contains(err.Error(), "10.20.2.1:"):
			t.Errorf("%s: the refusal tells of the other tenant: %v", name, err)
		}
	}
	// Reads of the tenant.
	for _, req := range []*apiv1.GetRequest{{}, {Kind: "Service"}, {Kind: "Service", Name: "media-web"}, {Kind: "Tenant"}, {Kind: "Node"}, {Kind: "Network"}} {
		res, err := ann.Get(t.Context(), connect.NewRequest(req))
		if err != nil {
			continue // refused
		}
		for _, o := range res.Msg.GetObjects() {
			if text := o.String(); strings.Contains(text, "media") || o.GetNode() != nil {
				t.Errorf("get %v: has %v", req, text)
			}
		}
	}
	if st, err := ann.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{})); err == nil && strings.Contains(st.Msg.String(), "media") {
		t.Errorf("the status has the other tenant: %v", st.Msg)
	}
	if got := r.services(); strings.Join(got, " ") != strings.Join(before, " ") {
		t.Errorf("services %q, were %q", got, before)
	}
}

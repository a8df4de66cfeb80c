package manager_test

import (
	"context"
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

// TestTokensEndWithTheirTenant checks that the transaction that deletes a tenant revokes its
// tokens, that their streams end, and that the audit log names them.
func TestTokensEndWithTheirTenant(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), tenant("shop", 0), tenant("media", 0))
	shop, media := r.access("ann", "tenant", "shop", 0), r.access("bob", "tenant", "media", 0)
	ann := r.bearer(shop.Token)
	s, err := ann.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{}))
	if err != nil || !s.Receive() {
		t.Fatalf("watch: %v %v", err, s.Err())
	}
	r.delete("Tenant", "shop")
	if err := get(t, ann); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("the token of a tenant that was deleted: %v", err)
	}
	for s.Receive() {
	}
	if err := s.Err(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("its stream ended with %v", err)
	}
	if err := get(t, r.bearer(media.Token)); err != nil {
		t.Errorf("another tenant's: %v", err)
	}
	r.apply(tenant("shop", 0))
	if err := get(t, ann); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("with a new tenant of that name: %v", err)
	}
	res, err := r.admin.Audit(t.Context(), connect.NewRequest(&apiv1.AuditRequest{}))
	want := []string{"tenants/shop deleted", "access/" + shop.Access.Id + " (ann, tenant shop) revoked"}
	if err != nil || !slices.ContainsFunc(res.Msg.Entries, func(e *apiv1.AuditEntry) bool { return slices.Equal(e.What, want) && e.Call == "Delete" }) {
		t.Errorf("the audit log has no %q: %v %v", want, res, err)
	}
}

// TestNoMemberTakesARevokedToken checks that no member accepts a token after its revocation was
// acknowledged. A member whose view is behind answers only after it has caught up.
func TestNoMemberTakesARevokedToken(t *testing.T) {
	gates := map[string]*gated{}
	ms := newMembers(t, 2, wrapGated(gates))
	leader, behind := ms.leader(1), ms.follower()
	a := leader.access("ci", "viewer", "", time.Hour)
	c := behind.bearer(a.Token)
	if err := get(t, behind.admin); err != nil { // makes it catch up
		t.Fatal(err)
	}
	if err := version(t.Context(), c); err != nil {
		t.Fatalf("a good token: %v", err)
	}
	thaw := gates[behind.name].freeze()
	if err := leader.revoke(a.Access.Id); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := version(ctx, c); err == nil {
		t.Error("a member that is behind takes the token")
	}
	thaw()
	for what, err := range map[string]error{"version": version(t.Context(), c), "get": get(t, c), "at the leader": get(t, leader.bearer(a.Token))} {
		if connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func version(ctx context.Context, c shuntv1connect.ManagerClient) error {
	_, err := c.Version(ctx, connect.NewRequest(&apiv1.VersionRequest{}))
	return err
}

// TestAllAccessEndsWithItsTenant checks that certificates and ID tokens of a deleted tenant are
// refused and that their streams end. The tenant's services may remain, because they are the
// operator's to change.
func TestAllAccessEndsWithItsTenant(t *testing.T) {
	d := startDex(t)
	var out lines
	at := clock.NewFake(time.Now())
	r := newRigOf(t, rig{clock: at, oidc: d.verifier(at, &out)})
	r.apply(network(), hostNode(1), tenant("shop", 0))
	ann := d.idToken("shunt", "ann")
	eventually(t, at, func() error { return get(t, r.bearer(ann)) })
	callers := map[string]shuntv1connect.ManagerClient{
		"oidc ann@example.org": r.bearer(ann),
		"somebody":             shuntv1connect.NewManagerClient(r.httpClient(r.certified(subject("tenant", "shop"))), "https://"+r.addr),
	}
	streams := map[string]*connect.ServerStreamForClient[apiv1.WatchResponse]{}
	for who, c := range callers {
		s, err := c.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{}))
		if err != nil || !s.Receive() {
			t.Fatalf("%s: watch: %v %v", who, err, s.Err())
		}
		streams[who] = s
	}
	r.delete("Tenant", "shop")
	r.apply(ofTenant("shop-web", "shop", 10))
	for who, s := range streams {
		for s.Receive() {
		}
		if err := s.Err(); connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "the tenant was deleted") {
			t.Errorf("%s: the stream ended with %v", who, err)
		}
		if err := get(t, callers[who]); connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), who+" acts for tenants/shop, which does not exist") {
			t.Errorf("%s: %v", who, err)
		}
		at.Advance(2 * time.Second)
	}
	for _, e := range r.refusals(2) {
		if callers[e.GetWho()] == nil || e.GetRole() != "tenant" || e.GetCall() != "Get" || e.GetRefused() != e.GetWho()+" acts for tenants/shop, which does not exist" {
			t.Errorf("the audit log has %v", e)
		}
	}
	_, err := r.admin.CreateAccess(t.Context(), connect.NewRequest(&apiv1.CreateAccessRequest{Name: "ann", Role: "tenant", Tenant: "shop"}))
	if v := violations(t, err); len(v) != 1 || v[0] != "tenant: shop: must be the name of a Tenant, and there is none of this name: a service that names it is not enough, apply the Tenant first" {
		t.Errorf("a token for a tenant without an object: %v", err)
	}
	r.apply(tenant("shop", 0))
	for who, c := range callers {
		if err := get(t, c); err != nil {
			t.Errorf("%s, with a Tenant again: %v", who, err)
		}
	}
}

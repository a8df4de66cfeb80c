package manager_test

import (
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/token"
)

// get returns the error of reading all services.
func get(t *testing.T, c shuntv1connect.ManagerClient) error {
	t.Helper()
	_, err := c.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Service"}))
	return err
}

func TestAccessTokens(t *testing.T) {
	s := store.NewMemory()
	at := clock.NewFake(time.Now())
	r := newRigAt(t, s, at)
	ci := r.access("ci", "viewer", "", 0)
	if got := ci.Access.Expires.AsTime().Sub(ci.Access.Created.AsTime()); got != 24*time.Hour {
		t.Errorf("lives %v by default, want 24h", got)
	}
	if err := get(t, r.bearer(ci.Token)); err != nil {
		t.Errorf("a good token: %v", err)
	}
	if _, err := r.bearer(ci.Token).Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{})); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a viewer applies: %v", err)
	}

	parsed, err := token.ParseAccess(ci.Token)
	if err != nil {
		t.Fatal(err)
	}
	snap, err := s.List(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	kept := false
	for _, kv := range snap.KVs {
		h := sha256.Sum256(parsed.Secret[:])
		kept = kept || strings.Contains(string(kv.Value), string(h[:]))
		if strings.Contains(string(kv.Value), string(parsed.Secret[:])) || strings.Contains(string(kv.Value), ci.Token) {
			t.Errorf("%s holds the secret", kv.Key)
		}
	}
	if !kept {
		t.Error("the store does not hold the secret's hash")
	}

	// Every unusable token gets the same error.
	revoked, expired := r.access("gone", "admin", "", 0), r.access("old", "admin", "", time.Minute)
	if err := r.revoke(revoked.Access.Id); err != nil {
		t.Fatal(err)
	}
	if err := r.revoke(revoked.Access.Id); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("revoked twice: %v", err)
	}
	at.Advance(time.Minute)
	wrong := parsed
	wrong.Secret[31]++
	unknown := parsed
	unknown.ID = "0123456789abcdef"
	var said string
	for name, tok := range map[string]string{
		"revoked": revoked.Token, "expired": expired.Token, "wrong secret": wrong.String(), "unknown": unknown.String(), "no form": "shunt_x", "garbage": "x",
	} {
		err := get(t, r.bearer(tok))
		if connect.CodeOf(err) != connect.CodeUnauthenticated || said != "" && err.Error() != said {
			t.Errorf("%s: %v, want what all the others hear: %s", name, err, said)
		}
		said = err.Error()
	}
	if err := get(t, r.bearer(ci.Token)); err != nil {
		t.Errorf("a good token afterwards: %v", err)
	}
}

func TestAccessIsListedAndSwept(t *testing.T) {
	s := store.NewMemory()
	at := clock.NewFake(time.Now())
	r := newRigAt(t, s, at)
	r.apply(tenant("shop", 0))
	r.access("b", "tenant", "shop", time.Hour)
	r.access("a", "admin", "", 365*24*time.Hour)
	list := func() string {
		res, err := r.admin.ListAccess(t.Context(), connect.NewRequest(&apiv1.ListAccessRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, a := range res.Msg.Access {
			out = append(out, a.Name+"/"+a.Role+"/"+a.Tenant)
		}
		return strings.Join(out, " ")
	}
	stored := func() int {
		snap, err := s.List(t.Context(), "/shunt/access/")
		if err != nil {
			t.Fatal(err)
		}
		return len(snap.KVs)
	}
	if got := list(); got != "a/admin/ b/tenant/shop" || stored() != 2 {
		t.Errorf("list: %s, %d stored", got, stored())
	}
	at.Advance(time.Hour)
	if got := list(); got != "a/admin/" {
		t.Errorf("list after one expired: %s", got)
	}
	for tries := 0; stored() != 1; tries++ {
		if tries == maxTries {
			t.Fatalf("%d are stored after the sweep, want 1", stored())
		}
		<-time.After(10 * time.Millisecond)
		// the sweep may have started before the expiry: let the next one run
		at.Advance(time.Minute)
	}
}

func TestAccessFaults(t *testing.T) {
	r := newRig(t, store.NewMemory())
	for field, req := range map[string]*apiv1.CreateAccessRequest{
		"name":   {Name: "CI server", Role: "admin"},
		"role":   {Name: "ci", Role: "manager"},
		"tenant": {Name: "ci", Role: "tenant"},
		"ttl":    {Name: "ci", Role: "admin", Ttl: durationpb.New(366 * 24 * time.Hour)},
	} {
		_, err := r.admin.CreateAccess(t.Context(), connect.NewRequest(req))
		if v := violations(t, err); connect.CodeOf(err) != connect.CodeInvalidArgument || len(v) != 1 || !strings.HasPrefix(v[0], field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	_, err := r.admin.CreateAccess(t.Context(), connect.NewRequest(&apiv1.CreateAccessRequest{Name: "ci", Role: "viewer", Tenant: "shop"}))
	if v := violations(t, err); len(v) != 1 || !strings.HasPrefix(v[0], "tenant: shop: ") {
		t.Errorf("a viewer of a tenant: %v", err)
	}
}

// TestStreamsEndWithTheirToken checks that a Watch ends with the token that opened it.
func TestStreamsEndWithTheirToken(t *testing.T) {
	at := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), at)
	for how, end := range map[string]func(id string) error{
		"revoked":     r.revoke,
		"has expired": func(string) error { at.Advance(time.Hour); return nil },
	} {
		a := r.access("ci", "viewer", "", time.Hour)
		s, err := r.bearer(a.Token).Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{}))
		if err != nil || !s.Receive() {
			t.Fatalf("watch: %v %v", err, s.Err())
		}
		if err := end(a.Access.Id); err != nil {
			t.Fatal(err)
		}
		for s.Receive() {
		}
		if err := s.Err(); connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), how) {
			t.Errorf("the stream of a token that %s ended with %v", how, err)
		}
	}
}

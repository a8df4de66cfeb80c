package manager_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestNewSecrets: a cluster that is restored with other secrets has the same state, and nodes that
// join with new tokens get the same member ids and keys. The previous secrets, tokens and
// certificates are refused.
func TestNewSecrets(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), carrying(1, 2))
	mux := r.join("mux1", "mux")
	before := mux.until("the service", func(p plan.Plan) bool { return len(p.Endpoints) == 2 && len(p.Cookies) == 1 && len(p.CIDs) == 1 })
	access := r.access("ci", "admin", "", time.Hour)
	r.token("mux1", "mux") // it stays unused
	formerCA, formerAdmin := r.ca(), r.adminTLS()
	a := r.backup()
	next, err := manager.NewSecrets(a, "m1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(a.Secrets.StoreKey, next.Secrets.StoreKey) || bytes.Equal(a.Secrets.CAKey, next.Secrets.CAKey) {
		t.Error("a former secret is in it")
	}
	mixed := *next
	mixed.Secrets.StoreKey = a.Secrets.StoreKey
	if err := manager.CheckBackup(&mixed); err == nil || !strings.Contains(err.Error(), "sealed with another key") {
		t.Errorf("with the former key of the store: %v", err)
	}
	r.restore(next)
	if left := content(t, r.store, "/shunt/tokens/", "/shunt/access/"); len(left) > 0 {
		t.Errorf("tokens that came along: %v", left)
	}
	// The mux keeps forwarding with its last plan until it has a token of the new CA. It needs no
	// restart.
	if err := os.WriteFile(filepath.Join(mux.state, "token"), []byte(r.token("mux1", "mux")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	after := mux.until("the restored state", func(p plan.Plan) bool { return p.Epoch > before.Epoch })
	if !reflect.DeepEqual(after.Endpoints, before.Endpoints) || !reflect.DeepEqual(after.RingKeys, before.RingKeys) ||
		!reflect.DeepEqual(after.Cookies, before.Cookies) || !reflect.DeepEqual(after.CIDs, before.CIDs) {
		t.Errorf("%+v: must be %+v", after, before)
	}
	if err := get(t, r.admin); err != nil {
		t.Fatalf("the new administrator: %v", err)
	}
	if err := get(t, r.bearer(access.GetToken())); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a former access token: %v", err)
	}
	for _, role := range []string{"admin", "manager", "mux", "tenant"} {
		if err := get(t, shuntv1connect.NewManagerClient(r.httpClient(r.as(formerCA, "mux1", role)), "https://"+r.addr)); err == nil {
			t.Errorf("a certificate of role %s by the former CA is taken", role)
		}
	}
	formerAdmin.RootCAs = r.adminTLS().RootCAs
	if err := get(t, shuntv1connect.NewManagerClient(r.httpClient(formerAdmin), "https://"+r.addr)); err == nil {
		t.Error("the former administrator's certificate is taken")
	}
}

package manager_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

func TestChangesOfATenantAreBounded(t *testing.T) {
	at := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), at)
	r.apply(network(), hostNode(1), tenant("shop", 2), tenant("media", 0))
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	bob := r.bearer(r.access("bob", "tenant", "media", 0).Token)
	change := func(vip int) error { return applyAs(t, ann, ofTenant("shop-web", "shop", vip)) }
	for vip := 10; vip < 12; vip++ {
		if err := change(vip); err != nil {
			t.Fatalf("change %d of 2: %v", vip-9, err)
		}
	}
	err := change(12)
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "quotas.changes: 2 a minute are used up: try again in 30s") {
		t.Fatalf("change 3 of 2: %v", err)
	}
	var ce *connect.Error
	if asConnect(err, &ce); ce.Meta().Get("Retry-After") != "30" {
		t.Errorf("Retry-After: %q, want 30", ce.Meta().Get("Retry-After"))
	}
	// Others, reads and dry runs are not delayed by it.
	if err := applyAs(t, bob, ofTenant("media-web", "media", 20)); err != nil {
		t.Errorf("another tenant's change: %v", err)
	}
	r.apply(ofTenant("shop-web", "shop", 13))
	dry := &apiv1.ApplyRequest{DryRun: true, Objects: []*apiv1.Object{convert.ToObject(ofTenant("shop-web", "shop", 14))}}
	if _, err := ann.Apply(t.Context(), connect.NewRequest(dry)); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	at.Advance(30 * time.Second)
	// Requests that change nothing or are refused do not count as changes.
	if err := change(13); err != nil {
		t.Errorf("what is so already: %v", err)
	}
	if err := applyAs(t, ann, ofTenant("shop-web", "media", 14)); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("what may not be: %v", err)
	}
	if err := change(15); err != nil {
		t.Errorf("after half a minute: %v", err)
	}
	if err := deleteAs(t, ann, "Service", "shop-web"); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a delete beyond the quota: %v", err)
	}
}

// TestRefusedChangesOfATenantAreBounded: refused changes count as dry runs, and as changes once
// these are used up.
func TestRefusedChangesOfATenantAreBounded(t *testing.T) {
	r := newRigAt(t, store.NewMemory(), clock.NewFake(time.Now()))
	r.apply(network(), hostNode(1), tenant("shop", 2))
	ann := r.bearer(r.access("ann", "tenant", "shop", 0).Token)
	outside := ofTenant("shop-web", "shop", 10)
	outside.VIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")} // in no Network
	refused := 0
	for {
		err := applyAs(t, ann, outside)
		if connect.CodeOf(err) == connect.CodeResourceExhausted {
			break
		}
		if refused++; connect.CodeOf(err) != connect.CodeInvalidArgument || refused > 100 {
			t.Fatalf("refusal %d: %v", refused, err)
		}
	}
	if want := 60 + 2; refused != want {
		t.Errorf("%d changes are refused for what they are before the quota refuses them, want %d", refused, want)
	}
}

// TestDryRunsOfATenantAreBounded by a rate of their own, whether they fail or not. The refusal is
// audited. A tenant with an unlimited quota has no limit.
func TestDryRunsOfATenantAreBounded(t *testing.T) {
	at := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), at)
	r.apply(network(), hostNode(1), tenant("shop", 2), tenant("bank", 90), tenant("media", lb.Unlimited))
	dry := func(c shuntv1connect.ManagerClient, tenant string) error {
		// The second one has no objects, which is a fault.
		_, err := c.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{DryRun: true, Objects: []*apiv1.Object{convert.ToObject(ofTenant(tenant+"-web", tenant, 10))}}))
		if err == nil {
			_, err = c.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{DryRun: true}))
		}
		if connect.CodeOf(err) == connect.CodeInvalidArgument {
			return nil
		}
		return err
	}
	for tenant, most := range map[string]int{"shop": 60, "bank": 90, "media": 200} {
		c := r.bearer(r.access("ann", "tenant", tenant, 0).Token)
		for i := range most / 2 {
			if err := dry(c, tenant); err != nil {
				t.Fatalf("%s: pair %d of dry runs: %v", tenant, i, err)
			}
		}
		if err := dry(c, tenant); tenant == "media" {
			if err != nil {
				t.Errorf("a tenant with an unlimited quota: %v", err)
			}
		} else if want(err, connect.CodeResourceExhausted, fmt.Sprintf("tenants/%s: dry runs: %d a minute are used up: try again in 1s", tenant, most)) != nil {
			t.Errorf("%s: one dry run more: %v", tenant, err)
		}
		if err := applyAs(t, c, ofTenant(tenant+"-web", tenant, map[string]int{"shop": 11, "bank": 12, "media": 13}[tenant])); err != nil {
			t.Errorf("%s: a change beside them: %v", tenant, err)
		}
	}
	at.Advance(2 * time.Second)
	for _, e := range r.refusals(2) {
		if !strings.Contains(e.GetRefused(), "dry runs: ") || e.GetCall() != "Apply" || e.GetRole() != "tenant" {
			t.Errorf("the audit log has %v", e)
		}
	}
}

// TestFloodsOfStrangersAreBounded: after a burst of failures an address is refused without a check,
// but a caller with a good token is accepted from there. The refusal ends with time.
func TestFloodsOfStrangersAreBounded(t *testing.T) {
	at := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), at)
	good := r.bearer(r.access("ci", "viewer", "", 0).Token)
	bad := r.bearer("shunt_0123456789abcdef_" + strings.Repeat("A", 43))
	for i := range 60 {
		if err := get(t, bad); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Fatalf("failure %d: %v", i+1, err)
		}
	}
	for range 3 {
		if err := get(t, bad); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "try again in 1s") {
			t.Fatalf("after 60 failures: %v", err)
		}
	}
	body := &zeros{left: 1000}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+r.addr+"/shunt.v1.NodeProtocol/Join", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/proto")
	res, err := r.httpClient(r.as(nil, "", "none")).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") != "1" {
		t.Errorf("a join from there: %s, Retry-After %q", res.Status, res.Header.Get("Retry-After"))
	}
	if err := get(t, good); err != nil {
		t.Errorf("a good token from there: %v", err)
	}
	if err := get(t, r.admin); err != nil {
		t.Errorf("a certificate from there: %v", err)
	}
	at.Advance(10 * time.Second)
	if err := get(t, bad); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("after ten seconds: %v", err)
	}
}

// lines is a searchable log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

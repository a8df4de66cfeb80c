package manager

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// TestByShare: each entry is in one group, in order. Only owners with more than a share of their
// class have a group of their own, and the group of pageUsual is first.
func TestByShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SliceOf(rapid.IntRange(0, 19)).Draw(t, "kinds of entries")
		entries := make([]*apiv1.AuditEntry, len(kinds))
		for i, n := range kinds {
			e := &apiv1.AuditEntry{Count: uint32(i + 1), What: []string{strings.Repeat("x", rapid.IntRange(0, 40).Draw(t, "size"))}}
			if n >= 2 {
				e.Role, e.Tenant = pki.RoleTenant, fmt.Sprint("tenant", n/2)
			}
			if n%2 == 1 {
				e.Refused = "no right"
			}
			entries[i] = e
		}
		held := map[pageShare]int64{}
		for _, c := range []pageClass{pageTenants, pageRefused} {
			for n := range 10 {
				held[pageShare{c, fmt.Sprint("tenant", n)}] = int64(rapid.IntRange(0, 200).Draw(t, "held"))
			}
		}
		of := classBytes{pageTenants: 100 * ownerShares, pageRefused: 150 * ownerShares}
		bytes, count := map[pageShare]int64{}, map[pageShare]int{}
		for _, e := range entries {
			bytes[auditShareOf(e)] += int64(proto.Size(e))
			count[auditShareOf(e)]++
		}
		groups := byShare(entries, auditShareOf, of, func(s pageShare) int64 { return held[s] })
		seen, shared := map[*apiv1.AuditEntry]bool{}, map[pageClass]int{}
		for n, g := range groups {
			class := auditShareOf(g[0]).class
			if class == pageUsual && n > 0 {
				t.Fatalf("pageUsual is group %d", n)
			}
			apart := 0
			for i, e := range g {
				s := auditShareOf(e)
				if seen[e] || i > 0 && g[i-1].GetCount() > e.GetCount() || s.class != class {
					t.Fatalf("entry %d of %+v in a group of class %d", e.GetCount(), s, class)
				}
				seen[e] = true
				if class != pageUsual && held[s]+bytes[s] > of[class]/ownerShares {
					if apart++; count[s] != len(g) {
						t.Fatalf("%d entries of %+v in a group of %d", count[s], s, len(g))
					}
				}
			}
			if apart == 0 {
				shared[class]++
			}
		}
		few := shared[pageUsual] <= 1 && shared[pageTenants] <= 1 && shared[pageRefused] <= 1
		if len(seen) != len(entries) || !few {
			t.Fatalf("%d of %d entries; %v groups without an owner", len(seen), len(entries), shared)
		}
	})
}

// earlyScribe is a scribe whose journals hold little, with a few early entries of many tenants, of
// an operator and of nodes. They are written together with those of a tenant that writes much.
type earlyScribe struct {
	*scribe
	tenants int
}

func newEarlyScribe(t *testing.T) *earlyScribe {
	s := &earlyScribe{newScribe(t), 30}
	b := bounds{bytes: 600_000, of: classBytes{pageTenants: 200_000, pageRefused: 200_000}, age: time.Hour}
	s.audit.pages.bounds, s.events.pages.bounds = b, b
	for n := range 4 {
		s.note("loud", long(n)) // more than a share: later entries are not in pages of others
	}
	for i := range s.tenants {
		s.note(fmt.Sprint("quiet", i), "early")
		s.note("loud", long(4+i))
		s.m.audited(&apiv1.AuditEntry{Who: "ann", Call: "Join", What: []string{fmt.Sprint("early", i)}})
		s.m.event(&apiv1.Event{Kind: string(lb.KindNode), Name: fmt.Sprint("mux", i), Reason: reasonNodeConnected, Message: "early"})
		s.writeAudit()
		s.write()
		s.clock.Advance(time.Second)
	}
	return s
}

// note adds a call of a tenant, a refused one, and an event of a service.
func (s *earlyScribe) note(tenant, text string) {
	from := "192.0.2." + fmt.Sprint(len(tenant)) + ":1"
	s.m.audited(&apiv1.AuditEntry{Who: "token of " + tenant, Role: pki.RoleTenant, Tenant: tenant, From: from, Call: "QUICConfig", What: []string{text}})
	s.m.audited(&apiv1.AuditEntry{Who: "token of " + tenant, Role: pki.RoleTenant, Tenant: tenant, From: from, Call: "Apply", Refused: text})
	s.m.event(&apiv1.Event{Kind: string(lb.KindService), Name: tenant + "-web", Tenant: tenant, Reason: reasonEndpointDown, Message: text})
}

// check compares the early entries that are left with those of newEarlyScribe.
func (s *earlyScribe) check() {
	s.t.Helper()
	got := map[string]int{}
	for _, e := range s.readAudit(&apiv1.AuditRequest{Limit: 1 << 20}) {
		switch {
		case e.GetWho() == "ann" && strings.HasPrefix(e.GetWhat()[0], "early"):
			got["calls of the operator"]++
		case strings.HasPrefix(e.GetTenant(), "quiet") && e.GetRefused() == "early":
			got["refusals of other tenants"]++
		case strings.HasPrefix(e.GetTenant(), "quiet") && slices.Contains(e.GetWhat(), "early"):
			got["calls of other tenants"]++
		}
	}
	pages, _, _ := s.m.view.events.since(0, &eventFilter{})
	events, err := (&eventFilter{}).read(pages)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range events {
		switch {
		case strings.HasPrefix(e.GetTenant(), "quiet") && e.GetMessage() == "early":
			got["events of other tenants"]++
		case e.GetKind() == string(lb.KindNode) && e.GetMessage() == "early":
			got["events of nodes"]++
		}
	}
	for _, what := range []string{"calls of the operator", "refusals of other tenants", "calls of other tenants", "events of other tenants", "events of nodes"} {
		if got[what] != s.tenants {
			s.t.Errorf("%d of %d %s are left", got[what], s.tenants, what)
		}
	}
}

// long returns a text that differs from those of other numbers in letters, because numbers do not
// make an event another.
func long(i int) string {
	return string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/26/26)) + strings.Repeat(" again", 150)
}

// TestOwnersPushOutTheirOwn: a tenant that writes ten times the bound pushes out its own entries
// and events, and none of another tenant, of operators and of nodes.
func TestOwnersPushOutTheirOwn(t *testing.T) {
	s := newEarlyScribe(t)
	for i := range 500 {
		for n := range 4 {
			s.note("loud", long(4*i+n))
		}
		s.writeAudit()
		s.write()
		s.clock.Advance(time.Second)
	}
	s.check()
	for name, j := range map[string]*journal{"audit log": s.m.view.audit, "events": s.m.view.events.journal} {
		if n := j.bytesOf[pageTenants]; n > 200_000 || n < 190_000 {
			t.Errorf("%s: tenants have %d bytes", name, n)
		}
		if n := j.heldBy(pageShare{pageTenants, "loud"}); n < 170_000 {
			t.Errorf("%s: the tenant that writes has %d bytes", name, n)
		}
	}
}

// TestNodesPushOutNoTenants: operators and nodes that write more than the whole journal do not push
// out entries of tenants either.
func TestNodesPushOutNoTenants(t *testing.T) {
	s := newEarlyScribe(t)
	for i := range 700 {
		s.m.audited(&apiv1.AuditEntry{Who: "bob", Call: "Join", What: []string{long(i)}})
		s.m.event(&apiv1.Event{Kind: string(lb.KindNode), Name: "mux0", Reason: reasonEventsLost, Message: long(i)})
		s.writeAudit()
		s.write()
		s.clock.Advance(time.Second)
	}
	s.tenants = 0 // no early entries of nodes and operators are left
	for _, e := range s.readAudit(&apiv1.AuditRequest{Limit: 1 << 20}) {
		if strings.HasPrefix(e.GetTenant(), "quiet") {
			s.tenants++
		}
	}
	events := s.read(eventFilter{kind: string(lb.KindService)})
	events = slices.DeleteFunc(events, func(e string) bool { return !strings.HasPrefix(e, "Service quiet") })
	if s.tenants != 60 || len(events) != 30 {
		t.Errorf("%d of 60 entries and %d of 30 events of tenants are left", s.tenants, len(events))
	}
}

// TestChangesBeyondTheBounds: changes of a tenant exceed the bounds of the whole log before the
// writer removes pages. Only entries of that tenant are removed.
func TestChangesBeyondTheBounds(t *testing.T) {
	s := newEarlyScribe(t)
	term, err := s.m.lead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 900 {
		op, err := term.auditOp(&apiv1.AuditEntry{
			Time: timestamppb.New(s.clock.Now()), Who: "token of loud", Role: pki.RoleTenant, Tenant: "loud", Call: "Apply", What: []string{long(i)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.m.commit(t.Context(), store.Txn{Ops: []store.Op{op}}); err != nil {
			t.Fatal(err)
		}
	}
	s.writeAudit()
	s.check()
	if n := s.m.view.audit.bytesOf[pageTenants]; n > 200_000 || n < 190_000 {
		t.Errorf("tenants have %d bytes in the audit log", n)
	}
}

// TestPagesOfFormerBuilds: pages with entries of several classes, or of tenants without a name, are
// read, counted and removed.
func TestPagesOfFormerBuilds(t *testing.T) {
	audit, events := newAuditJournal(), newEventJournal().journal
	put := func(j *journal, n uint64, v proto.Message) *page {
		value, err := proto.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		key := pageKey(j.dir, time.Unix(int64(n), 0), 1, n)
		if err := j.fold(store.Event{KV: store.KV{Key: key, Value: value}}); err != nil {
			t.Fatal(err)
		}
		return j.byKey[key]
	}
	tenant := &apiv1.AuditEntry{Who: "token shop", Role: pki.RoleTenant, Call: "QUICConfig"}
	refused := &apiv1.AuditEntry{Who: "token shop", Role: pki.RoleTenant, Call: "Apply", Refused: "no right"}
	node := &apiv1.Event{Kind: string(lb.KindNode), Name: "mux1", Reason: reasonNodeConnected}
	service := func(tenant string) *apiv1.Event {
		return &apiv1.Event{Kind: string(lb.KindService), Name: "web", Tenant: tenant, Reason: reasonApplied}
	}
	for i, c := range []struct {
		page   *page
		class  pageClass
		owners []string
	}{
		{put(audit, 1, &apiv1.StoredAudit{Entries: []*apiv1.AuditEntry{tenant, tenant}}), pageTenants, []string{""}},
		{put(audit, 2, &apiv1.StoredAudit{Entries: []*apiv1.AuditEntry{refused}}), pageRefused, []string{""}},
		{put(audit, 3, &apiv1.StoredAudit{Entries: []*apiv1.AuditEntry{refused, tenant}}), pageUsual, nil},
		{put(audit, 4, &apiv1.StoredAudit{}), pageUsual, nil},
		{put(events, 1, &apiv1.StoredEvents{Events: []*apiv1.Event{service("a"), node}}), pageUsual, nil},
		{put(events, 2, &apiv1.StoredEvents{Events: []*apiv1.Event{service("a"), service("b"), service("a")}}), pageTenants, []string{"a", "b"}},
	} {
		var owners []string
		for _, part := range c.page.parts {
			owners = append(owners, part.owner)
		}
		if c.page.class != c.class || !slices.Equal(owners, c.owners) {
			t.Errorf("page %d: class %d of %q, want %d of %q", i, c.page.class, owners, c.class, c.owners)
		}
	}
	for _, j := range []*journal{audit, events} {
		b := bounds{bytes: 1, of: classBytes{pageTenants: 1, pageRefused: 1}, age: time.Hour}
		if got := j.excess(b, classBytes{}, time.Unix(5, 0), 100); len(got) != len(j.pages) {
			t.Errorf("%s: %q of %d pages are removed", j.dir, got, len(j.pages))
		}
	}
}

package manager

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// scribe is a kept manager whose events the test writes.
type scribe struct {
	*kept
	events *eventWriter
	audit  *auditWriter
}

func newScribe(t *testing.T) *scribe {
	s := &scribe{kept: newKept(t)}
	s.begin()
	return s
}

// begin does the work of a term's start.
func (s *scribe) begin() {
	s.m.events.begin(s.m.view.events.lastTold())
	s.events = &eventWriter{pages: pages{m: s.m, journal: s.m.view.events.journal, bounds: eventBounds}}
	s.audit = newAuditWriter(s.m)
}

// write writes all events that may be written now.
func (s *scribe) write() {
	s.t.Helper()
	for {
		next, err := s.events.write(s.t.Context(), s.clock.Now())
		if err != nil {
			s.t.Fatal(err)
		}
		if next.IsZero() || next.After(s.clock.Now()) {
			return
		}
	}
}

// read returns the journal as text: "Service web BackendDown x3".
func (s *scribe) read(f eventFilter) []string {
	s.t.Helper()
	pages, _, _ := s.m.view.events.since(0, &f)
	events, err := f.read(pages)
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, e := range events {
		line := strings.TrimSpace(fmt.Sprintf("%s %s %s", e.GetKind(), e.GetName(), e.GetReason()))
		if e.GetCount() > 1 {
			line += fmt.Sprintf(" x%d", e.GetCount())
		}
		out = append(out, line)
	}
	return out
}

func (s *scribe) expectEvents(f eventFilter, want ...string) {
	s.t.Helper()
	if got := s.read(f); strings.Join(got, "\n") != strings.Join(want, "\n") {
		s.t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEventsAreKeptAndFiltered(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 1, 2)...)
	s.clock.Advance(time.Millisecond) // events of the same time are ordered by page
	s.m.objectEvent(lb.KindNode, "mux1", reasonNodeConnected, "is connected")
	s.write()
	s.expectEvents(eventFilter{}, "Network main Applied", "Service s0 Applied", "Node mux1 NodeConnected")
	start := s.clock.Now()
	s.clock.Advance(time.Hour)
	if _, _, err := s.m.remove(t.Context(), []ref{{lb.KindService, "s0"}}, false, false); err != nil {
		t.Fatal(err)
	}
	s.write()
	s.stop()
	s.start()
	s.begin()
	s.expectEvents(eventFilter{kind: "Service"}, "Service s0 Applied", "Service s0 Deleted")
	s.expectEvents(eventFilter{kind: "Service", name: "s1"})
	s.expectEvents(eventFilter{kind: "Node", name: "mux1"}, "Node mux1 NodeConnected")
	s.expectEvents(eventFilter{since: start.Add(time.Second)}, "Service s0 Deleted")
	s.clock.Advance(7*24*time.Hour - time.Minute)
	s.write()
	s.expectEvents(eventFilter{}, "Service s0 Deleted")
	s.clock.Advance(time.Hour)
	s.write()
	s.expectEvents(eventFilter{})
	snap, err := s.store.List(t.Context(), dirEvents)
	if err != nil || len(snap.KVs) != 0 {
		t.Errorf("after a week: %d keys, %v", len(snap.KVs), err)
	}
}

// TestEventsOfAFormerTenant checks that a new tenant cannot read events of a deleted one of the
// same name. Other callers read all.
func TestEventsOfAFormerTenant(t *testing.T) {
	s := newScribe(t)
	event := func(kind lb.Kind, name, reason string) {
		s.clock.Advance(time.Second)
		s.m.event(&apiv1.Event{Kind: string(kind), Name: name, Reason: reason, Tenant: "shop", Message: name + " " + reason})
		s.write()
	}
	event(lb.KindTenant, "shop", reasonApplied)
	event(lb.KindService, "secret", reasonApplied)
	event(lb.KindService, "secret", reasonDeleted)
	event(lb.KindTenant, "shop", reasonDeleted)
	event(lb.KindTenant, "shop", reasonApplied)
	event(lb.KindService, "web", reasonApplied)
	for range 2 {
		s.expectEvents(eventFilter{tenant: "shop"}, "Tenant shop Applied", "Service web Applied")
		if all := s.read(eventFilter{kind: "Service", name: "secret"}); len(all) != 2 {
			t.Errorf("an admin reads %q of the former tenant", all)
		}
		s.stop()
		s.start()
		s.begin()
	}
}

// TestEventsOfATenantWhoseEndWasLost checks the same if the leader that deleted the earlier tenant
// could not write that event, and if the deletion lists the tenant before its services.
func TestEventsOfATenantWhoseEndWasLost(t *testing.T) {
	s := newScribe(t)
	shop := &lb.Tenant{Name: "shop"}
	filter := func() eventFilter {
		return eventFilter{tenant: "shop", created: s.m.view.createdAt(ref{lb.KindTenant, "shop"})}
	}
	s.apply(shop)
	s.m.event(&apiv1.Event{Kind: string(lb.KindService), Name: "secret", Reason: reasonApplied, Tenant: "shop", Message: "created"})
	s.write()
	s.expectEvents(filter(), "Tenant shop Applied", "Service secret Applied")
	if _, _, err := s.m.remove(t.Context(), []ref{{lb.KindTenant, "shop"}}, false, false); err != nil {
		t.Fatal(err)
	}
	s.begin() // another term: pending events are lost
	s.apply(shop)
	s.write()
	s.expectEvents(filter(), "Tenant shop Applied")

	now := s.clock.Now()
	s.m.wrote(&apiv1.AuditEntry{Who: "admin"}, []*apiv1.Change{
		{Kind: string(lb.KindTenant), Name: "shop", Action: apiv1.Change_ACTION_DELETED, Before: convert.ToObject(shop)},
		{Kind: string(lb.KindService), Name: "secret", Action: apiv1.Change_ACTION_DELETED, Before: convert.ToObject(&lb.Service{Name: "secret", Tenant: "shop"})},
	})
	for _, e := range s.m.events.funnel.waiting {
		if got := e.value.GetTime().AsTime(); !got.Equal(now) {
			t.Errorf("%s %s: at %v, want %v as all of the write", e.value.GetKind(), e.value.GetName(), got, now)
		}
	}
}

// TestNodeOfADeadLeaderWasSeenUntilItsLastPage checks that a node whose stream ended with its
// manager was seen until that manager wrote its last event, not only when the stream began, and
// however many leaders follow.
func TestNodeOfADeadLeaderWasSeenUntilItsLastPage(t *testing.T) {
	s := newScribe(t)
	event := func(kind, name, reason string) time.Time {
		s.clock.Advance(12 * time.Hour)
		s.m.event(&apiv1.Event{Kind: kind, Name: name, Reason: reason, Message: reason})
		s.write()
		return s.clock.Now()
	}
	expect := func(want time.Time) {
		t.Helper()
		if got := s.m.view.events.lastSeen("mux1"); !got.Equal(want) {
			t.Errorf("seen at %v, want %v", got, want)
		}
	}
	expect(time.Time{})
	event(kindManager, "m1", reasonLeaderChanged)
	expect(event(string(lb.KindNode), "mux1", reasonNodeConnected))
	last := event(string(lb.KindNode), "mux2", reasonNodeConnected)
	event(kindManager, "m2", reasonLeaderChanged)
	expect(last)
	event(kindManager, "m3", reasonLeaderChanged)
	expect(last)
	expect(event(string(lb.KindNode), "mux1", reasonNodeDisconnected))
	event(kindManager, "m1", reasonLeaderChanged)
	expect(last.Add(36 * time.Hour))
}

func TestEqualEventsArePutTogether(t *testing.T) {
	s := newScribe(t)
	tell := func(n int) {
		s.m.event(&apiv1.Event{Kind: "Service", Name: "web", Reason: reasonBackendDown, Message: fmt.Sprintf("1 of 2 backends down: 10.0.0.%d:80", n)})
	}
	tell(1)
	tell(2)
	s.write()
	s.expectEvents(eventFilter{}, "Service web BackendDown x2")
	for i := range 20 {
		s.clock.Advance(time.Second)
		tell(i)
		s.write()
	}
	s.expectEvents(eventFilter{}, "Service web BackendDown x2", "Service web BackendDown", "Service web BackendDown", "Service web BackendDown", "Service web BackendDown")
	s.clock.Advance(time.Minute)
	s.write()
	got := s.read(eventFilter{})
	if last := got[len(got)-1]; last != "Service web BackendDown x16" {
		t.Errorf("a minute later: %s", last)
	}
}

// TestLatchedEventsAreToldOnce checks that a new leader does not repeat events about nodes that
// were written before.
func TestLatchedEventsAreToldOnce(t *testing.T) {
	s := newScribe(t)
	connected := func() { s.m.objectEvent(lb.KindNode, "mux1", reasonNodeConnected, "is connected") }
	connected()
	s.write()
	s.stop()
	s.start()
	s.begin()
	connected()
	s.write()
	s.expectEvents(eventFilter{}, "Node mux1 NodeConnected")
	s.m.objectEvent(lb.KindNode, "mux1", reasonNodeDisconnected, "its stream ended")
	s.clock.Advance(time.Second)
	connected()
	s.write()
	s.expectEvents(eventFilter{}, "Node mux1 NodeConnected", "Node mux1 NodeDisconnected", "Node mux1 NodeConnected")
}

// TestEventsOfAManagerThatDoesNotLead checks that a manager that does not lead drops events.
func TestEventsOfAManagerThatDoesNotLead(t *testing.T) {
	s := newScribe(t)
	s.m.events.end()
	s.m.objectEvent(lb.KindNode, "mux1", reasonNodeConnected, "is connected")
	s.begin()
	s.write()
	s.expectEvents(eventFilter{})
}

// TestEventFlood checks that events beyond the limit are counted, and that the bytes in the store
// are bounded.
func TestEventFlood(t *testing.T) {
	s := newScribe(t)
	s.events.pages.bounds.bytes = 100_000
	for i := range eventLimit + 500 {
		s.m.event(&apiv1.Event{Kind: "Service", Name: fmt.Sprint("s", i), Reason: reasonApplied, Message: "created by admin"})
	}
	s.write()
	got := s.read(eventFilter{})
	if last, want := got[len(got)-1], fmt.Sprintf("Manager m1 EventsLost x%d", eventLimit+500-eventShare); last != want {
		t.Errorf("the last event: %s, want %s", last, want)
	}
	snap, err := s.store.List(t.Context(), dirEvents)
	bytes := 0
	for _, kv := range snap.KVs {
		bytes += len(kv.Key) + len(kv.Value)
	}
	if err != nil || bytes > 100_000 || bytes < 50_000 || int64(bytes) != s.m.view.events.bytesOf.sum() {
		t.Errorf("%d bytes are stored, counted as %d: %v", bytes, s.m.view.events.bytesOf.sum(), err)
	}
}

// TestEventFloodOfATenant checks that more events of one tenant than may wait neither replace nor
// delay events of others.
func TestEventFloodOfATenant(t *testing.T) {
	s := newScribe(t)
	note := func(tenant, name string) {
		s.m.event(&apiv1.Event{Kind: "Service", Name: name, Tenant: tenant, Reason: reasonApplied, Message: "created by " + tenant})
	}
	for i := range eventLimit + 500 {
		note("evil", fmt.Sprint("s", i))
	}
	var want []string
	for i := range 20 {
		name := fmt.Sprint("good", i)
		note("good", name)
		want = append(want, "Service "+name+" Applied")
	}
	s.m.objectEvent(lb.KindNode, "mux1", reasonNodeConnected, "is connected")
	// One batch is written.
	if _, err := s.events.write(t.Context(), s.clock.Now()); err != nil {
		t.Fatal(err)
	}
	if got := s.read(eventFilter{kind: "Node"}); !slices.Equal(got, []string{"Node mux1 NodeConnected"}) {
		t.Errorf("events of nodes in the first batch: %v", got)
	}
	var got []string
	for _, line := range s.read(eventFilter{kind: "Service"}) {
		if strings.Contains(line, "good") {
			got = append(got, line)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("events of the other tenant in the first batch: %v", got)
	}
	for i := range 1000 {
		note("third", fmt.Sprint("third", i))
	}
	s.write()
	kept := map[string]int{}
	for _, line := range s.read(eventFilter{kind: "Service"}) {
		switch {
		case strings.Contains(line, "third"):
			kept["third"]++
		case !strings.Contains(line, "good"):
			kept["evil"]++
		}
	}
	if kept["third"] != 1000 {
		t.Errorf("%d events of the third tenant", kept["third"])
	}
	if got, want := s.read(eventFilter{kind: "Tenant"}), fmt.Sprintf("Tenant evil EventsLost x%d", eventLimit+500-kept["evil"]); !slices.Equal(got, []string{want}) {
		t.Errorf("events of tenants: %v, want %v", got, want)
	}
	if got := s.read(eventFilter{kind: kindManager}); len(got) != 0 {
		t.Errorf("events of the manager: %v", got)
	}
}

// TestEventIsWrittenOnce checks that a transaction with an unknown result is repeated.
func TestEventIsWrittenOnce(t *testing.T) {
	s := newScribe(t)
	s.m.objectEvent(lb.KindNode, "mux1", reasonNodeConnected, "is connected")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.events.write(ctx, s.clock.Now()); err == nil {
		t.Fatal("no error without a store")
	}
	s.write()
	s.write()
	s.expectEvents(eventFilter{}, "Node mux1 NodeConnected")
}

// TestReasonsAreDocumented checks that the table of docs/ops/events.md equals the one in Go, except
// its last column, the action to take, which must not be empty.
func TestReasonsAreDocumented(t *testing.T) {
	const file = "../../docs/ops/events.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| reason | severity | about | what happened |\n|---|---|---|---|\n")
	seen := map[string]bool{}
	for _, r := range reasons {
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", r.name, r.severity, r.about, r.meaning)
		if seen[r.name] {
			t.Errorf("%s stands in the table twice", r.name)
		}
		seen[r.name] = true
	}
	_, rest, found := strings.Cut(string(text), "<!-- reasons -->\n")
	table, _, end := strings.Cut(rest, "<!-- end of reasons -->")
	var got strings.Builder
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSuffix(line, " |\n"), " | ")
		if strings.HasPrefix(line, "|---") {
			cells = strings.SplitAfterN(strings.TrimSuffix(line, "\n"), "|", 6)
			got.WriteString(strings.Join(cells[:5], "") + "\n")
			continue
		}
		if last := len(cells) - 1; last != 4 || strings.TrimSpace(cells[last]) == "" {
			t.Errorf("%s: %q must have five columns, the last of which says what to do", file, line)
		}
		got.WriteString(strings.Join(cells[:min(4, len(cells))], " | ") + " |\n")
	}
	if !found || !end || got.String() != want.String() {
		t.Errorf("%s: the first columns of the table of reasons must be:\n%s", file, want.String())
	}
}

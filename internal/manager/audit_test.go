package manager

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// writeAudit runs the audit writer once and returns the time of its next run.
func (s *scribe) writeAudit() time.Time {
	s.t.Helper()
	next, err := s.audit.write(s.t.Context(), s.clock.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	return next
}

func (s *scribe) readAudit(req *apiv1.AuditRequest) []*apiv1.AuditEntry {
	s.t.Helper()
	out, err := s.m.readAudit(s.t.Context(), req)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// TestAuditIsPartOfTheWrite checks that an audit entry has the revision of its write, and that a
// write that fails has no entry.
func TestAuditIsPartOfTheWrite(t *testing.T) {
	s := newScribe(t)
	objs := crowd(2, 1, 1)
	s.apply(objs...)
	s.apply(objs...) // changes nothing
	if _, _, err := s.m.remove(t.Context(), []ref{{"Service", "nope"}}, false, false); err == nil {
		t.Fatal("a service that is not there was deleted")
	}
	// dry run
	if _, _, err := s.m.remove(t.Context(), []ref{{"Service", "s1"}}, true, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.m.createToken(t.Context(), &apiv1.StoredToken{Node: "mux1", Role: "mux"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	got := s.readAudit(&apiv1.AuditRequest{})
	if len(got) != 2 {
		t.Fatalf("%d entries: %v", len(got), got)
	}
	if what := strings.Join(got[0].GetWhat(), ", "); what != "networks/main created, services/s0 created, services/s1 created" {
		t.Errorf("what: %s", what)
	}
	kv, _, _, err := s.store.Get(t.Context(), dirObjects+"Service/s1")
	if err != nil || got[0].GetRevision() != kv.ModRevision {
		t.Errorf("revision %d, the object has %d: %v", got[0].GetRevision(), kv.ModRevision, err)
	}
	if what := strings.Join(got[1].GetWhat(), ", "); !strings.HasPrefix(what, "tokens/") || !strings.HasSuffix(what, "for mux mux1 created") {
		t.Errorf("what: %s", what)
	}
}

// TestAuditHasNoSecrets checks that the audit log in the store has no token's secret.
func TestAuditHasNoSecrets(t *testing.T) {
	s := newScribe(t)
	tok, _, err := s.m.createToken(t.Context(), &apiv1.StoredToken{Node: "mux1", Role: "mux"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	_, secret, _ := strings.Cut(tok.String(), tok.ID)
	snap, err := s.store.List(t.Context(), dirAudit)
	if err != nil || len(snap.KVs) != 1 || !strings.Contains(string(snap.KVs[0].Value), tok.ID) {
		t.Fatalf("%v: %v", snap, err)
	}
	if len(secret) < 16 || strings.Contains(string(snap.KVs[0].Value), strings.Trim(secret, ".")) {
		t.Errorf("the secret %q is in the log, or no secret", secret)
	}
}

func refusal(who, from, why string) *apiv1.AuditEntry {
	return &apiv1.AuditEntry{Who: who, From: from, Call: "Apply", Refused: why}
}

// TestRefusalsOfOneCaller checks that many refusals cost one entry at a time, and that every one is
// counted.
func TestRefusalsOfOneCaller(t *testing.T) {
	s := newScribe(t)
	for second := range 30 {
		for port := range 1000 {
			s.m.audited(refusal("ann", fmt.Sprintf("192.0.2.7:%d", 1024+port), "no right"))
		}
		s.writeAudit()
		if second == 0 {
			s.m.audited(refusal("bob", "192.0.2.8:1", "no right"))
			s.writeAudit()
		}
		s.clock.Advance(time.Second)
	}
	s.clock.Advance(time.Minute)
	s.writeAudit()
	entries, calls := s.readAudit(&apiv1.AuditRequest{Refused: true}), 0
	for _, e := range entries {
		calls += int(e.GetCount())
	}
	if calls != 30_001 || len(entries) > 7 {
		t.Errorf("%d calls in %d entries", calls, len(entries))
	}
}

// TestRefusalsOfManyCallers checks that refusals cost one entry a second, and bounded memory.
func TestRefusalsOfManyCallers(t *testing.T) {
	s := newScribe(t)
	waiting := 0
	for second := range 20 {
		for i := range 2000 {
			s.m.audited(refusal(fmt.Sprint("who", second*2000+i), "192.0.2.7:1", "no right"))
		}
		waiting = max(waiting, len(s.m.auditLog.refusals.waiting))
		s.writeAudit()
		s.clock.Advance(time.Second)
	}
	entries := s.readAudit(&apiv1.AuditRequest{Refused: true})
	if len(entries) > auditBurst+20 || waiting > auditLimit+1 {
		t.Errorf("%d entries, %d waited", len(entries), waiting)
	}
	for range 2 * auditLimit {
		s.clock.Advance(time.Second)
		s.writeAudit()
	}
	calls, others := 0, 0
	for _, e := range s.readAudit(&apiv1.AuditRequest{Limit: 10_000}) {
		calls += int(e.GetCount())
		if e.GetWho() == othersRefused {
			others += int(e.GetCount())
		}
	}
	if calls != 40_000 || others == 0 {
		t.Errorf("%d calls, %d of others", calls, others)
	}
}

// TestRefusalsHideNoOthers checks that a client that is refused for ever new reasons, from all
// addresses of a /48, neither hides nor delays refusals of another source.
func TestRefusalsHideNoOthers(t *testing.T) {
	for name, from := range map[string]func(i int) string{
		"one address": func(int) string { return "192.0.2.7:1" },
		"a /48":       func(i int) string { return fmt.Sprintf("[2001:db8:0:%x::1]:1", i&0xffff) },
	} {
		s := newScribe(t)
		flood := func(second int) {
			for i := range 3000 {
				s.m.audited(refusal(fmt.Sprint("who", second*3000+i), from(second*3000+i), "no right"))
			}
		}
		for second := range 100 {
			flood(second)
			s.writeAudit()
			s.clock.Advance(time.Second)
		}
		for i := range 3 {
			flood(100 + i)
			s.m.audited(refusal(fmt.Sprint("mallory", i), fmt.Sprintf("198.51.100.%d:1", i), "no right"))
			flood(103 + i)
		}
		for second := range 5 {
			s.writeAudit()
			flood(200 + second)
			s.clock.Advance(time.Second)
		}
		found := 0
		for _, e := range s.readAudit(&apiv1.AuditRequest{Refused: true}) {
			if strings.HasPrefix(e.GetWho(), "mallory") && strings.HasPrefix(e.GetFrom(), "198.51.100.") {
				found++
			}
		}
		if found != 3 {
			t.Errorf("%s: %d of 3 refusals of others are in the audit log after 5 s", name, found)
		}
		if waiting := len(s.m.auditLog.refusals.waiting); waiting > auditLimit+1 {
			t.Errorf("%s: %d wait", name, waiting)
		}
	}
}

// TestOthersPushNothingOut checks that refusals and the entries of tenants have shares of their own
// in the log.
func TestOthersPushNothingOut(t *testing.T) {
	s := newScribe(t)
	s.audit.pages.bounds = bounds{bytes: 20_000, of: classBytes{pageRefused: 5_000, pageTenants: 4_000}, age: time.Hour}
	s.apply(crowd(1, 1, 1)...)
	for i := range 1000 {
		s.m.audited(refusal(fmt.Sprint("who", i), "192.0.2.7:1", strings.Repeat("no right ", 100)))
		s.m.audited(&apiv1.AuditEntry{Who: fmt.Sprint("mux", i%10), Call: "Join", What: []string{fmt.Sprint("nodes/mux", i%10, " joined")}, Time: nil})
		if i > 10 {
			s.m.auditLog.takeDone()
		}
		s.m.audited(&apiv1.AuditEntry{Who: "token shop", Role: pki.RoleTenant, Call: "QUICConfig", What: []string{strings.Repeat("connection ids ", 20)}})
		s.writeAudit()
		s.clock.Advance(time.Second)
	}
	if b := s.m.view.audit.bytesOf; b[pageRefused] > 5_000 || b[pageRefused] < 2_000 || b[pageTenants] > 4_000 || b[pageTenants] < 2_000 {
		t.Errorf("%d bytes of refusals, %d of tenants", b[pageRefused], b[pageTenants])
	}
	got := s.readAudit(&apiv1.AuditRequest{})
	if got[0].GetWhat()[0] != "networks/main created" {
		t.Errorf("the first entry: %v", got[0])
	}
	s.clock.Advance(time.Hour)
	s.writeAudit()
	if got := s.readAudit(&apiv1.AuditRequest{}); len(got) != 0 {
		t.Errorf("after --audit-keep: %v", got)
	}
	snap, err := s.store.List(t.Context(), dirAudit)
	if err != nil || len(snap.KVs) != 0 {
		t.Errorf("after --audit-keep: %d keys, %v", len(snap.KVs), err)
	}
}

// TestAuditAnswersWithTheNewest checks that Audit returns the newest entries, as many as requested.
func TestAuditAnswersWithTheNewest(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 1, 1)...)
	for i := range 30 {
		s.clock.Advance(time.Second)
		svc := crowd(1, 1, 1)[1:]
		s.apply(svc...)
		if _, _, err := s.m.createToken(t.Context(), &apiv1.StoredToken{Node: fmt.Sprint("mux", i), Role: "mux"}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	got := s.readAudit(&apiv1.AuditRequest{Limit: 3})
	if len(got) != 3 || !strings.Contains(got[0].GetWhat()[0], "mux27") || !strings.Contains(got[2].GetWhat()[0], "mux29") {
		t.Errorf("got %v", got)
	}
	// Entries that are swept during the read are left out.
	pages, _, _ := s.m.view.audit.since(0, time.Time{})
	if _, err := s.m.commit(t.Context(), store.Txn{Ops: []store.Op{store.Delete(pages[0].key)}}); err != nil {
		t.Fatal(err)
	}
	if out, err := s.m.newest(t.Context(), pages[:2], 10, func(*apiv1.AuditEntry) bool { return true }); err != nil || len(out) != 1 {
		t.Errorf("with a swept page: %v, %v", out, err)
	}
}

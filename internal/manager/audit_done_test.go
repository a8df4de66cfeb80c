package manager

import (
	"slices"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestTooManyCompletedCalls: calls beyond the limit are counted in one entry, and every entry
// within the limit keeps its text.
func TestTooManyCompletedCalls(t *testing.T) {
	l := newAuditLog()
	for range doneLimit + 3 {
		l.addDone(&apiv1.AuditEntry{What: []string{"joined"}})
	}
	done := l.takeDone()
	if len(done) != doneLimit+1 {
		t.Fatalf("%d entries, want %d", len(done), doneLimit+1)
	}
	for i, e := range done[:doneLimit] {
		if !slices.Equal(e.GetWhat(), []string{"joined"}) {
			t.Fatalf("entry %d: %q", i, e.GetWhat())
		}
	}
	if got, want := done[doneLimit].GetWhat(), []string{"3 calls that were too many at once"}; !slices.Equal(got, want) {
		t.Errorf("the last entry has %q, want %q", got, want)
	}
	if l.addDone(&apiv1.AuditEntry{}); len(l.takeDone()) != 1 || l.lost != 0 {
		t.Errorf("afterwards %d are counted as lost", l.lost)
	}
}

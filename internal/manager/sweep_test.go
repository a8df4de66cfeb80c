package manager_test

import (
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

func TestRemovedEndpointsAreForgottenAfterTheirQuarantine(t *testing.T) {
	s, c := store.NewMemory(), clock.NewFake(time.Now())
	r := newRigAt(t, s, c)
	r.apply(network(), hostNode(1), web(1))
	r.delete("Service", "web")
	states := func() int {
		snap, err := s.List(t.Context(), "/shunt/endpoints/")
		if err != nil {
			t.Fatal(err)
		}
		return len(snap.KVs)
	}
	if states() != 1 {
		t.Fatal("a removed endpoint must remember its member ids")
	}
	c.Advance(plan.MemberQuarantine)
	for tries := 0; states() > 0; tries++ {
		if tries == maxTries {
			t.Fatal("the endpoint is still remembered")
		}
		<-time.After(10 * time.Millisecond)
		// a sweep that was in progress when the quarantine ended is followed by the next
		c.Advance(time.Hour)
	}
}

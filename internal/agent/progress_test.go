package agent

import (
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
)

func TestPlanAges(t *testing.T) {
	c := clock.NewFake(time.Unix(1000, 0))
	l := &loop{o: Options{Clock: c}, wanted: &folded{}, applied: &folded{}, work: make(chan struct{}, 1), report: make(chan struct{}, 1)}
	var p Progress
	if got := p.State(); got != (State{}) {
		t.Errorf("before it runs: %+v", got)
	}
	l.setConnected(false)
	p.follow(l)
	age := func(when string, want time.Duration) {
		t.Helper()
		c.Advance(time.Second)
		if got := p.State().Age; got != want {
			t.Errorf("%s: age %v, want %v", when, got, want)
		}
	}
	age("no manager yet", time.Second)
	l.setConnected(true)
	if err := l.take(&apiv1.PlanUpdate{Revision: 1, Epoch: 1, Snapshot: true}); err != nil {
		t.Fatal(err)
	}
	age("not applied yet", 2*time.Second)
	l.applied = l.wanted
	age("applied", 0)
	l.setConnected(false)
	age("the manager went", time.Second)
	age("and stays away", 2*time.Second)
	l.setConnected(true)
	age("it is back", 0)
	if got := p.State(); got.Applied != 1 || got.Wanted != 1 || got.Epoch != 1 || !got.Connected {
		t.Errorf("state %+v", got)
	}
}

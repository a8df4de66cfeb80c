package host

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/plan"
)

// inTables lists the outer destinations that the tables know.
func inTables(f *dataplane.FakeHost) string {
	state, _ := f.State()
	var out []string
	for _, b := range state.Bindings {
		out = append(out, b.Outer.String())
	}
	return strings.Join(out, " ")
}

func TestBindingsOutliveTheirPlan(t *testing.T) {
	var tables dataplane.FakeHost
	c := clock.NewFake(time.Unix(0, 0))
	a := New(&tables, settings(forwarding), &prober{}, c, nil)
	apply := func(dips ...string) error {
		var p plan.Plan
		for _, dip := range dips {
			p.Bindings = append(p.Bindings, binding("203.0.113.10", dip))
		}
		return a.Apply(context.Background(), p)
	}
	expect := func(when, want string) {
		t.Helper()
		if err := a.Expire(); err != nil {
			t.Fatal(err)
		}
		if got := inTables(&tables); got != want {
			t.Errorf("%s: tables have %q, want %q", when, got, want)
		}
	}
	apply("10.20.1.11", "10.20.1.12", "10.20.1.13")
	apply("10.20.1.11")
	expect("two are taken out", "10.20.1.11 10.20.1.12 10.20.1.13")
	c.Advance(linger / 2)
	apply("10.20.1.11", "10.20.1.13")
	expect("one comes back", "10.20.1.11 10.20.1.13 10.20.1.12")
	apply("10.20.1.11")
	c.Advance(linger / 2)
	expect("the first one's time is over", "10.20.1.11 10.20.1.13")
	c.Advance(linger / 2)
	expect("and the other's", "10.20.1.11")

	apply("10.20.1.12")
	tables.FailApply(errors.New("full"))
	if err := apply("10.20.1.14"); err == nil {
		t.Error("a state that the tables refuse was taken")
	}
	tables.FailApply(nil)
	expect("what was refused left no trace", "10.20.1.12 10.20.1.11")
}

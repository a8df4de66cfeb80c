package probe

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestStatsByKind checks that results, including void ones without a probe, are counted by the kind
// of their check, and that the totals are their sums.
func TestStatsByKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: func(x Target) (Answer, time.Duration) {
			if x.Check.Value().TLS {
				return Answer{Verdict: Bad, Words: "certificate expired"}, 0
			}
			return Answer{Verdict: Good}, 30 * time.Millisecond
		}, takes: func(x Target) error {
			if x.Check.Value().Kind == "future" {
				return errors.ErrUnsupported
			}
			return nil
		}}
		r := newRig(t, a)
		kind := func(kind string, tls bool) []Target {
			return targetsOf(1, checkOf(func(c *lb.Check) { c.Kind, c.TLS = kind, tls }))
		}
		var all []Target
		for _, x := range [][]Target{kind(lb.CheckTCP, false), kind(lb.CheckHTTP, true), kind("future", false)} {
			all = append(all, x...)
		}
		set(t, r.Engine, all)
		pass(10 * time.Millisecond)
		set(t, r.Engine, all[:2])
		pass(50 * time.Millisecond)
		s := r.Stats()
		want := map[string][3]uint64{"tcp": {1, 0, 0}, "https": {0, 1, 0}, "other": {0, 0, 1}}
		for _, k := range s.Kinds {
			if got := [3]uint64{k.Good, k.Bad, k.Void}; got != want[k.Name] {
				t.Errorf("%s: %v good, bad and void, want %v", k.Name, got, want[k.Name])
			}
		}
		if len(s.Kinds) != len(lb.CheckKinds)+1 || s.Good != 1 || s.Bad != 1 || s.Void != 1 || s.Took.Sum != 30*time.Millisecond {
			t.Errorf("totals: %+v", s)
		}
	})
}

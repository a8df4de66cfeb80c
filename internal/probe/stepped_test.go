package probe

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/clock/clocktest"
)

// TestTheTimeOfDayMovesNothing checks that setting the time of day changes no plan: no probe is
// late or skipped, and the distances between results stay.
func TestTheTimeOfDayMovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, 30*time.Millisecond)}
		r := newRig(t, a)
		wall := clocktest.NewStepped()
		e, err := New(Options{Clock: wall, Random: func() float64 { return 0.5 }, Report: r.report, Means: []Means{{Name: "x", New: func(answered func([]Answer)) (Asker, error) {
			a.answered = answered
			return a, nil
		}}}})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		set(t, e, targetsOf(1, checkOf(nil)))
		var want []time.Duration
		want = append(want, 0)
		for i, step := range []int64{3600, -7200, 86_400, -1, 1, -31_536_000, 59, 1_000_000} {
			pass(250 * time.Millisecond)
			wall.Step(step)
			pass(750 * time.Millisecond)
			want = append(want, time.Duration(2*i+1)*500*time.Millisecond)
		}
		onTick(t, a.take(), want...)
		results := r.take()
		for i := 2; i < len(results); i++ {
			if apart := results[i].At.Sub(results[i-1].At); apart < time.Second-2*tick || apart > time.Second+2*tick || results[i].Took != 30*time.Millisecond {
				t.Errorf("results %d and the one before are %v apart, %+v", i, apart, results[i])
			}
		}
		if s := e.Stats(); s.Late != 0 || s.Void != 0 || len(results) != len(want) {
			t.Errorf("%d results, %+v", len(results), s)
		}
	})
}

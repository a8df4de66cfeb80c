package mux

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/clock/clocktest"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// steppedRun returns the health transitions of flapping and silent members, and the isolation
// phases, of one scenario, in which the wall clock is set by hours or not.
func steppedRun(t *testing.T, seed uint64, steps bool) (story []string) {
	synctest.Test(t, func(t *testing.T) {
		w, r, wall := doubtWorld(t, func(h *lb.Health) {
			h.Checks[0].Rise, h.Checks[0].Fall = 1, 2
			h.Damping = &lb.Damping{Flips: 3, Within: 20 * time.Second, Hold: 10 * time.Second}
		}), rand.New(rand.NewPCG(seed, 1)), clocktest.NewStepped()
		w.agent.o.Clock = wall
		slices.SortFunc(w.prober.targets, compareTargets)
		for i := range 400 {
			if by := int64(r.IntN(200)-100)*3600 + int64(r.IntN(7)); steps && i%3 == 0 {
				wall.Step(by)
			}
			dark := i/25%4 == 3 // no member answers for a while
			var batch []probe.Result
			for _, target := range w.prober.targets {
				good, silent := r.IntN(4) != 0, r.IntN(2) == 0
				if r.IntN(3) == 0 || dark {
					batch = append(batch, probe.Result{Target: target, Good: good && !dark, Silent: silent || dark, Words: "drawn", At: wall.Now(), Took: time.Millisecond})
				}
			}
			w.agent.Probed(batch)
			time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			w.agent.Tick()
			w.speak()
			story = append(story, fmt.Sprint(i, slices.Sorted(slices.Values(w.take())), " suspects ", !w.agent.Suspect().IsZero()))
			due := w.agent.due()
			if !due.IsZero() {
				story = append(story, fmt.Sprint("due in ", due.Sub(wall.Now())))
			}
		}
	})
	return story
}

// TestTheTimeOfDayChangesNoVerdict: verdicts, damping, isolation and timers use the monotonic
// clock. Setting the wall clock back and forth by days makes no difference.
func TestTheTimeOfDayChangesNoVerdict(t *testing.T) {
	for seed := range uint64(4) {
		as, set := steppedRun(t, seed, false), steppedRun(t, seed, true)
		damped, doubts := 0, 0
		for i := range as {
			if as[i] != set[i] {
				t.Fatalf("seed %d, step %d:\n%s\nwith a time of day that is set:\n%s", seed, i, as[i], set[i])
			}
		}
		for _, line := range as {
			if len(line) > 4 && line[:3] == "due" {
				damped++
			}
			if line[len(line)-4:] == "true" {
				doubts++
			}
		}
		if damped == 0 || doubts == 0 || len(as) != len(set) {
			t.Errorf("seed %d: %d steps with something due, %d in suspicion: the story is none", seed, damped, doubts)
		}
	}
}

package probe

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestScheduleKeepsToItsPlan checks that probes begin immediately, again within the interval, then
// once an interval, however long answers take.
func TestScheduleKeepsToItsPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, 77*time.Millisecond)}
		r := newRig(t, a)
		one := targetsOf(1, checkOf(nil))
		set(t, r.Engine, slices.Concat(one, one, one))
		pass(4700 * time.Millisecond)
		const ms = time.Millisecond
		onTick(t, a.take(), 0, 500*ms, 1500*ms, 2500*ms, 3500*ms, 4500*ms)
		results := r.take()
		if len(results) != 6 || !results[0].Good || results[0].Target != one[0] || results[0].Took != 77*ms || results[0].Words != "verdict 1" ||
			!results[0].At.Equal(epoch) {
			t.Errorf("reported %+v", results)
		}
		if s := r.Stats(); s.Targets != 1 || s.Good != 6 || s.Late != 0 || s.Means[0].Asked != 6 || s.Start.Quantile(1) > 3*ms || s.Took.Quantile(0.5) != 100*ms {
			t.Errorf("stats %+v", s)
		}
		set(t, r.Engine, nil)
		pass(time.Hour)
		if got := a.take(); len(got) != 0 || len(r.take()) != 0 || a.known() != 0 {
			t.Errorf("a target that is gone is asked: %v", got)
		}
	})
}

// TestNobodyIsAskedTwice checks that a target with a missing answer is not probed, that it is
// probed immediately after the answer, and that its plan stays.
func TestNobodyIsAskedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{}
		r := newRig(t, a)
		set(t, r.Engine, targetsOf(1, checkOf(nil)))
		pass(3700 * time.Millisecond)
		a.say(0, Answer{Verdict: Good, Took: 3700 * time.Millisecond})
		pass(100 * time.Millisecond)
		a.say(0, Answer{Verdict: Good, Took: 100 * time.Millisecond})
		pass(time.Second)
		const ms = time.Millisecond
		onTick(t, a.take(), 0, 3700*ms, 4500*ms)
		if s := r.Stats(); s.Late != 3 {
			t.Errorf("%d probes were late, want those of 0.5, 1.5 and 2.5 s", s.Late)
		}
	})
}

// TestVoidIsAskedAgainSoon checks that a void probe is repeated within a second.
func TestVoidIsAskedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Void, 0)}
		r := newRig(t, a)
		set(t, r.Engine, targetsOf(1, checkOf(func(c *lb.Check) { c.Interval = time.Hour })))
		pass(2 * time.Second)
		const ms = time.Millisecond
		onTick(t, a.take(), 0, 750*ms, 1500*ms)
		if results := r.take(); len(results) != 3 || !results[0].Void || results[0].Good {
			t.Errorf("reported %+v", results)
		}
	})
}

// TestFastWhileResultsChange checks fast probes until rise or fall results in a row agree.
func TestFastWhileResultsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, 0)}
		r := newRig(t, a)
		const ms = time.Millisecond
		set(t, r.Engine, targetsOf(1, checkOf(func(c *lb.Check) { c.Interval, c.Fast, c.Rise, c.Fall = 10*time.Second, 100*ms, 2, 3 })))
		pass(6 * time.Second)
		onTick(t, a.take(), 0, 5000*ms)
		a.says(after(Bad, 0))
		pass(20 * time.Second)
		onTick(t, a.take(), 15_000*ms, 15_100*ms, 15_200*ms, 25_200*ms)
		a.says(after(Good, 0))
		pass(20 * time.Second)
		onTick(t, a.take(), 35_200*ms, 35_300*ms, 45_300*ms)
	})
}

// TestStartIsPaced checks that no tick begins more than maxPerTick probes, and that Resume spreads
// first probes over the interval.
func TestStartIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, time.Millisecond)}
		r := newRig(t, a)
		// The interval is so long that no target has neighbours.
		c := checkOf(func(c *lb.Check) { c.Interval = 20 * time.Second })
		targets := targetsOf(3*maxPerTick+10, c)
		set(t, r.Engine, targets)
		pass(100 * time.Millisecond)
		per := map[time.Duration]int{}
		for _, p := range a.take() {
			per[p.at]++
		}
		if len(per) < 4 {
			t.Errorf("begun at %v", per)
		}
		for at, n := range per {
			if n > maxPerTick {
				t.Errorf("%d begin at %v", n, at)
			}
		}
		if n := len(r.take()); n != len(targets) {
			t.Errorf("%d results of %d", n, len(targets))
		}
		set(t, r.Engine, nil)
		i := 0
		r.mu.Lock()
		r.random = func() float64 { i++; return float64(i%100) / 100 }
		r.mu.Unlock()
		if err := r.Resume(targets[:1000]); err != nil {
			t.Fatal(err)
		}
		set(t, r.Engine, targets[:1000])
		begun := time.Since(epoch)
		pass(19_999 * time.Millisecond)
		seen, slots := map[Target]bool{}, [10]int{}
		for _, p := range a.take() {
			seen[p.target] = true
			slots[min(9, (p.at-begun)/(2*time.Second))]++
		}
		if len(seen) != 1000 || slices.Min(slots[:]) < 50 {
			t.Errorf("%d were asked, in tenths of the interval: %v", len(seen), slots)
		}
	})
}

// TestManyAnswersAreOneReport checks that results that arrive together are reported together, and
// that a single one is not delayed.
func TestManyAnswersAreOneReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Bad, 500*time.Millisecond)}
		r := newRig(t, a)
		set(t, r.Engine, targetsOf(1000, checkOf(nil)))
		pass(503 * time.Millisecond)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.results) != 1000 || len(r.batches) > 3 {
			t.Errorf("%d results in batches of %v", len(r.results), r.batches)
		}
	})
}

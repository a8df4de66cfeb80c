package probe

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestPlansDoNotDrift checks, for any answer times, that probes stay as near to multiples of the
// interval as their jitter allows, that none is planned early, and that a late one is due within an
// interval.
func TestPlansDoNotDrift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.Int64Range(100, 3_600_000).Draw(t, "interval")) * time.Millisecond
		c := lb.Check{Interval: interval, Jitter: rapid.Uint8Range(0, 50).Draw(t, "jitter")}
		p := paceOf(&c)
		plan, answered := time.Duration(0), time.Duration(0)
		var low, high, skipped time.Duration
		for range rapid.IntRange(1, 30).Draw(t, "probes") {
			// It begins when it is planned, or later under load, and takes a while.
			answered = max(answered, plan) + time.Duration(rapid.Float64Range(0, 3).Draw(t, "took")*float64(interval))
			next, missed := p.after(plan, answered, run{}, false, false, rapid.Float64Range(0, 0.999).Draw(t, "random"))
			skipped += time.Duration(missed) * interval
			low += interval - time.Duration(float64(interval)*p.jitter) - time.Nanosecond
			high += interval + time.Duration(float64(interval)*p.jitter) + time.Nanosecond
			if next < low+skipped || next > high+skipped {
				t.Fatalf("planned for %v, with %v left out; want %v to %v", next, skipped, low+skipped, high+skipped)
			}
			if answered-next >= interval || missed > 0 && next > answered {
				t.Fatalf("at %v it is planned for %v, %d left out", answered, next, missed)
			}
			plan = next
		}
	})
}

// TestRunIsNaive checks that probes are fast while the results since the last settled state
// contradict it.
func TestRunIsNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := lb.Check{Interval: time.Minute, Fast: time.Second, Rise: rapid.Uint32Range(1, 4).Draw(t, "rise"), Fall: rapid.Uint32Range(1, 4).Draw(t, "fall")}
		p, r := paceOf(&c), run{}
		settled, results := true, []bool(nil)
		for _, good := range rapid.SliceOfN(rapid.Bool(), 0, 40).Draw(t, "results") {
			r.settle(p, good)
			results = append(results, good)
			odd := 0
			for i := len(results) - 1; i >= 0 && results[i] != settled; i-- {
				odd++
			}
			if need := c.Fall; odd > 0 && uint32(odd) >= map[bool]uint32{true: c.Rise, false: need}[good] {
				settled, results, odd = good, nil, 0
			}
			if r.dead == settled || int(r.odd) != odd {
				t.Fatalf("dead %v with %d against it, want settled on %v with %d", r.dead, r.odd, settled, odd)
			}
			next, _ := p.after(0, 0, r, false, false, 0.5)
			if want := map[bool]time.Duration{true: time.Second, false: time.Minute}[odd > 0]; next != want {
				t.Fatalf("next after %v, want %v", next, want)
			}
		}
	})
}

// TestSleepersDoNotStorm checks that a suspended machine continues in the rhythm of each target,
// and that a short stop is made up for immediately.
func TestSleepersDoNotStorm(t *testing.T) {
	p := paceOf(&lb.Check{Interval: 5 * time.Second})
	for _, c := range []struct {
		now, plan time.Duration
		missed    uint64
	}{
		{3 * time.Second, time.Second, 0}, {10 * time.Second, time.Second, 0}, {11 * time.Second, 16 * time.Second, 3},
		{time.Hour, time.Hour + time.Second, 720}, {time.Hour + time.Second, time.Hour + 6*time.Second, 721},
	} {
		if plan, missed := p.waken(time.Second, c.now); plan != c.plan || missed != c.missed {
			t.Errorf("woken at %v: planned for %v, %d missed; want %v, %d", c.now, plan, missed, c.plan, c.missed)
		}
	}
	slow := paceOf(&lb.Check{Interval: time.Hour})
	if plan, missed := slow.waken(0, 30*time.Minute); plan != 0 || missed != 0 {
		t.Errorf("a check that is less than an interval late is put off to %v, %d missed", plan, missed)
	}
}

func TestQuantiles(t *testing.T) {
	var h Histogram
	for i := range 100 {
		h.observe(time.Duration(i+1) * time.Millisecond)
	}
	h.observe(time.Hour)
	for q, want := range map[float64]time.Duration{0: Bounds[0], 0.01: 2 * time.Millisecond, 0.5: 100 * time.Millisecond, 1: Bounds[len(Bounds)-1]} {
		if got := h.Quantile(q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if h.Counts[len(Bounds)] != 1 || h.Sum != time.Hour+5050*time.Millisecond {
		t.Errorf("%+v", h)
	}
}

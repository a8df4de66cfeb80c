package manager

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// counted is a value with its number.
type counted struct {
	name string
	n    int
}

func newCounting(limit, burst int, pace time.Duration) *funnel[counted] {
	return newFunnel(funnelRules[counted]{
		merge:    func(old, now counted) counted { return counted{old.name, old.n + now.n} },
		overflow: func(c counted) (string, counted) { return "others", counted{"others", c.n} },
		limit:    limit, batch: 3, burst: burst, pace: pace,
	})
}

// TestFunnelLosesNothing checks that for any puts and takes the numbers that come out add up to
// those put in, that no value is released faster than it may be, and that no more than limit values
// wait in addition to the merged ones.
func TestFunnelLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, burst := rapid.IntRange(6, 8).Draw(t, "limit"), rapid.IntRange(1, 3).Draw(t, "burst")
		f := newCounting(limit, burst, time.Minute)
		now, in, out := time.Unix(0, 0), 0, 0
		taken := map[string][]time.Time{}
		collect := func(most int) {
			got, left, _ := f.take(now, most)
			if len(got) > most || left > limit+1 {
				t.Fatalf("take(%d): %d, %d left of at most %d", most, len(got), left, limit)
			}
			for _, c := range got {
				out += c.n
				taken[c.name] = append(taken[c.name], now)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				name := fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "name"))
				f.put(name, counted{name, 1})
				in++
			case 1:
				now = now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			case 2:
				collect(rapid.IntRange(0, 4).Draw(t, "most"))
			}
		}
		for range 10 {
			now = now.Add(time.Hour)
			collect(100)
		}
		if in != out {
			t.Fatalf("%d came in, %d came out", in, out)
		}
		for name, times := range taken {
			for i := burst; i < len(times); i++ {
				if d := times[i].Sub(times[i-burst]); d < time.Minute {
					t.Fatalf("%s: %d came through within %v", name, burst+1, d)
				}
			}
		}
	})
}

func TestFunnelTellsWhenToComeBack(t *testing.T) {
	f := newCounting(10, 2, time.Minute)
	now := time.Unix(1000, 0)
	for range 3 {
		f.put("a", counted{"a", 1})
		f.take(now, 10)
	}
	f.put("a", counted{"a", 1})
	if out, left, next := f.take(now, 10); len(out) != 0 || left != 1 || !next.Equal(now.Add(time.Minute)) {
		t.Errorf("after the burst: %v, %d left, next at %v", out, left, next)
	}
	f.put("b", counted{"b", 1})
	f.put("c", counted{"c", 1})
	if out, left, next := f.take(now, 1); len(out) != 1 || out[0].name != "b" || left != 2 || !next.IsZero() {
		t.Errorf("one of two that may: %v, %d left, next at %v", out, left, next)
	}
	if out, _, _ := f.take(now.Add(time.Minute), 10); len(out) != 2 || out[0] != (counted{"a", 2}) {
		t.Errorf("a minute later: %v", out)
	}
}

// TestFunnelMemoryIsBounded checks that any number of different values uses bounded memory.
func TestFunnelMemoryIsBounded(t *testing.T) {
	f := newCounting(100, 1, time.Minute)
	now, out := time.Unix(1000, 0), 0
	for i := range 100_000 {
		f.put(fmt.Sprint(i), counted{fmt.Sprint(i), 1})
		if len(f.waiting) > 101 {
			t.Fatalf("%d wait", len(f.waiting))
		}
		if i%50 == 0 {
			got, _, _ := f.take(now, 10)
			for _, c := range got {
				out += c.n
			}
			if len(f.credits) > 200 {
				t.Fatalf("%d credits", len(f.credits))
			}
		}
	}
	for range 20 {
		now = now.Add(time.Minute)
		got, _, _ := f.take(now, 10)
		for _, c := range got {
			out += c.n
		}
	}
	if out != 100_000 {
		t.Errorf("%d of 100000 came out", out)
	}
}

package health

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// flap is a transition of a member.
type flap struct {
	at time.Time
	up bool
}

// heldAt evaluates all transitions of a member until a time.
func heldAt(history []flap, now time.Time, p lb.Damping) bool {
	held := func(at time.Time, until time.Time) bool { return at.Before(until) }
	var fell, until time.Time
	for i, f := range history {
		if !f.up {
			if fell = f.at; held(f.at, until) {
				until = f.at.Add(p.Hold)
			}
			continue
		}
		rises := 0
		for _, before := range history[:i+1] {
			if before.up && f.at.Sub(before.at) < p.Within {
				rises++
			}
		}
		if end := fell.Add(p.Hold); rises > int(p.Flips) && !fell.IsZero() && end.After(until) {
			until = end
		}
	}
	return held(now, until)
}

// TestDampingAgreesWithHistory: a damper gives the same result as an evaluation of the whole
// history.
func TestDampingAgreesWithHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := func(name string, from, to int) time.Duration {
			return time.Duration(rapid.IntRange(from, to).Draw(t, name)) * time.Second
		}
		p := lb.Damping{Flips: uint16(rapid.IntRange(0, 3).Draw(t, "flips")), Within: seconds("within", 1, 20), Hold: seconds("hold", 1, 30)}
		var d Damper
		var history []flap
		now, up := time.Unix(1000, 0), rapid.Bool().Draw(t, "begins up")
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			now = now.Add(seconds("pause", 0, 8))
			if rapid.IntRange(0, 3).Draw(t, "flaps") > 0 {
				if up = !up; up {
					d.Rose(now, p)
				} else {
					d.Fell(now, p)
				}
				history = append(history, flap{now, up})
			}
			want := heldAt(history, now, p)
			if d.Holds(now) != want {
				t.Fatalf("held %v at %v after %v under %+v", d.Holds(now), now.Unix(), history, p)
			}
			if want && (heldAt(history, d.Due(), p) || !heldAt(history, d.Due().Add(-1), p)) {
				t.Fatalf("due at %v, which is not when it ends, after %v under %+v", d.Due(), history, p)
			}
			if len(d.ups) > int(p.Flips)+1 {
				t.Fatalf("remembers %d rises", len(d.ups))
			}
		}
	})
}

func TestDampingByExample(t *testing.T) {
	p := lb.Damping{Flips: 2, Within: time.Minute, Hold: 30 * time.Second}
	var d Damper
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	d.Rose(at(0), p)
	d.Fell(at(10), p)
	d.Rose(at(15), p)
	if d.Holds(at(15)) {
		t.Fatal("held with its second rise of two")
	}
	d.Fell(at(20), p)
	d.Rose(at(25), p)
	if !d.Holds(at(49)) || d.Holds(at(50)) || !d.Due().Equal(at(50)) {
		t.Fatalf("third rise: held until %v, expected 30 s after it fell at 20 s", d.Due().Sub(at(0)))
	}
	d.Fell(at(40), p)
	if !d.Due().Equal(at(70)) {
		t.Fatalf("fell while it was held: until %v", d.Due().Sub(at(0)))
	}
}

package health

import (
	"testing"

	"pgregory.net/rapid"
)

// naive decides from the members themselves.
func naive(before Decision, members []Standing, p Policy) Decision {
	var weight, up float64
	alive, unasked, any, backups := false, false, false, false
	for _, m := range members {
		if m.Weight == 0 {
			continue
		}
		any = true
		alive = alive || m.Alive
		unasked = unasked || !m.Asked
		if m.Backup {
			backups = true
			continue
		}
		weight += float64(m.Weight)
		if m.Alive {
			up += float64(m.Weight)
		}
	}
	d := Decision{FailOpen: p.FailOpen && any && !alive && (!unasked || before.FailOpen)}
	share := 0.0
	if weight > 0 {
		share = up / weight * 100
	}
	switch {
	case !backups:
	case weight == 0:
		d.Backup = true
	case d.FailOpen:
	case up == 0:
		d.Backup = true
	case before.Backup:
		d.Backup = share < 100 && share < float64(p.BackupBelow)+Margin
	default:
		d.Backup = share < float64(p.BackupBelow)
	}
	d.Panic = naivePanic(before.Panic, members, d.Backup, float64(p.PanicBelow))
	return d
}

// naivePanic computes the shares of the members that take part, with the worst and the best outcome
// of those without a result.
func naivePanic(before bool, members []Standing, backups bool, below float64) bool {
	worst, best, weight := 0.0, 0.0, 0.0
	for _, m := range members {
		if m.Backup && !backups {
			continue
		}
		w := float64(m.Weight)
		weight += w
		if m.Alive {
			worst += w
		}
		if m.Alive || !m.Asked {
			best += w
		}
	}
	switch {
	case weight == 0 || below == 0:
		return false
	case before:
		return worst < weight && worst/weight*100 < below+Margin
	}
	return best/weight*100 < below
}

func drawStanding(t *rapid.T) Standing {
	return Standing{
		// Sums are powers of two times small numbers, so that the oracle's shares are exact enough.
		Weight: rapid.SampledFrom([]uint16{0, 1, 1, 2, 1000}).Draw(t, "weight"), Backup: rapid.Bool().Draw(t, "backup"),
		Alive: rapid.Bool().Draw(t, "alive"), Asked: rapid.Bool().Draw(t, "asked"),
	}
}

// TestDecideFollowsTheMembers: the decision is the same whether the tally is updated by changes or
// counted anew.
func TestDecideFollowsTheMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tally Tally
		var members []Standing
		var now Decision
		p := Policy{BackupBelow: rapid.Uint8Range(0, 100).Draw(t, "below"), PanicBelow: rapid.SampledFrom([]uint8{0, 1, 25, 50, 95, 100}).Draw(t, "panic"), FailOpen: rapid.Bool().Draw(t, "failOpen")}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			s := drawStanding(t)
			if at := rapid.IntRange(0, len(members)).Draw(t, "at"); at == len(members) {
				members = append(members, s)
				tally.Add(s)
			} else {
				tally.Remove(members[at])
				members[at] = s
				tally.Add(s)
			}
			want := naive(now, members, p)
			if now = Decide(now, tally, p); now != want {
				t.Fatalf("decided %+v for %+v under %+v, expected %+v", now, members, p, want)
			}
			if now.Open() != (want.FailOpen || want.Panic) {
				t.Fatalf("%+v is open: %v", now, now.Open())
			}
		}
	})
}

// tallyOf returns a tally of members of weight 1 that are not backups, alive ones first, and one
// alive backup.
func tallyOf(members, alive int) (t Tally) {
	for i := range members {
		t.Add(Standing{Weight: 1, Alive: i < alive, Asked: true})
	}
	t.Add(Standing{Weight: 1, Alive: true, Asked: true, Backup: true})
	return t
}

func TestBackupsComeAndGoWithAMargin(t *testing.T) {
	p := Policy{BackupBelow: 50}
	var d Decision
	for i, step := range []struct {
		alive int
		want  bool
	}{{20, false}, {10, false}, {9, true}, {10, true}, {11, false}, {10, false}, {0, true}} {
		if d = Decide(d, tallyOf(20, step.alive), p); d.Backup != step.want {
			t.Errorf("step %d: with %d of 20 alive backups take part: %v", i, step.alive, d.Backup)
		}
	}
}

func TestFailOpenWaitsForTheFirstAnswers(t *testing.T) {
	p := Policy{FailOpen: true}
	var tally Tally
	dead, unknown := Standing{Weight: 1, Asked: true}, Standing{Weight: 1}
	tally.Add(dead)
	tally.Add(unknown)
	d := Decide(Decision{}, tally, p)
	if d.FailOpen {
		t.Error("failed open before every member was asked")
	}
	tally.Remove(unknown)
	tally.Add(dead)
	if d = Decide(d, tally, p); !d.FailOpen {
		t.Error("did not fail open with all members dead")
	}
	tally.Add(unknown)
	if d = Decide(d, tally, p); !d.FailOpen {
		t.Error("a new member ended it before it was asked")
	}
	tally.Add(Standing{Weight: 1, Alive: true, Asked: true})
	if d = Decide(d, tally, p); d.FailOpen {
		t.Error("stays open with a member alive")
	}
}

func TestPanicComesAndGoesWithAMargin(t *testing.T) {
	p := Policy{PanicBelow: 50}
	var d Decision
	for i, step := range []struct {
		alive, unknown int
		want           bool
	}{{20, 0, false}, {10, 0, false}, {9, 1, false}, {9, 0, true}, {9, 11, true}, {10, 0, true}, {11, 0, false}, {10, 0, false}, {0, 0, true}} {
		var tally Tally
		for n := range 20 {
			tally.Add(Standing{Weight: 1, Alive: n < step.alive, Asked: n < 20-step.unknown})
		}
		if d = Decide(d, tally, p); d.Panic != step.want {
			t.Errorf("step %d: with %d of 20 alive and %d unknown it panics: %v", i, step.alive, step.unknown, d.Panic)
		}
	}
}

// TestPanicLooksAtThoseThatTakePart: active healthy backups end a panic, idle ones do not.
func TestPanicLooksAtThoseThatTakePart(t *testing.T) {
	var tally Tally
	for n := range 10 {
		tally.Add(Standing{Weight: 1, Alive: n < 4, Asked: true})
		tally.Add(Standing{Weight: 1, Alive: true, Asked: true, Backup: true})
	}
	if d := Decide(Decision{}, tally, Policy{PanicBelow: 50}); !d.Panic || d.Backup {
		t.Errorf("4 of 10 below 50 percent, backups idle: %+v", d)
	}
	if d := Decide(Decision{}, tally, Policy{PanicBelow: 50, BackupBelow: 50}); d.Panic || !d.Backup {
		t.Errorf("14 of 20 with the backups: %+v", d)
	}
}

func TestServesFromTheMinimumOn(t *testing.T) {
	for _, c := range []struct {
		healthy int
		minimum uint16
		want    bool
	}{{0, 0, false}, {1, 0, true}, {1, 1, true}, {2, 3, false}, {3, 3, true}} {
		if got := Serves(c.healthy, c.minimum); got != c.want {
			t.Errorf("%d healthy of at least %d serve: %v", c.healthy, c.minimum, got)
		}
	}
}

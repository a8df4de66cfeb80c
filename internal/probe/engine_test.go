package probe

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestNumbersAreUsedAgainAfterTheirAnswer changes targets during their probes. The prober checks
// that no number is reused before its answer.
func TestNumbersAreUsedAgainAfterTheirAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packets, sockets := &asker{answer: after(Unsure, 300*time.Millisecond)}, &asker{answer: after(Good, 300*time.Millisecond)}
		r := newRig(t, packets, sockets)
		all := targetsOf(40, checkOf(nil))
		for i := range 200 {
			at := i * 7 % 30
			if err := r.Change(all[at:at+10], all[(at+15)%30:(at+15)%30+10]); err != nil {
				t.Fatal(err)
			}
			pass(time.Duration(i%5) * 50 * time.Millisecond)
		}
		set(t, r.Engine, nil)
		pass(time.Second)
		s := r.Stats()
		if packets.known()+sockets.known()+len(r.table.paces.known) != 0 || s.Out != 0 || s.Targets != 0 || s.Means[0].Targets != 0 || s.Means[1].Targets != 0 {
			t.Errorf("packets know %d, sockets %d, stats %+v", packets.known(), sockets.known(), s)
		}
		if len(r.table.unused) != len(r.table.rules) || len(r.table.rules) > 80 {
			t.Errorf("%d numbers of %d are free", len(r.table.unused), len(r.table.rules))
		}
		r.take()
		set(t, r.Engine, all)
		pass(2 * time.Second)
		seen := map[Target]bool{}
		for _, result := range r.take() {
			seen[result.Target] = true
		}
		if len(seen) != len(all) {
			t.Errorf("%d of %d are probed", len(seen), len(all))
		}
	})
}

// TestStoppedMachineBlamesNobody checks probes that were pending while the agent was stopped. Their
// bad results are void, because the agent's own packets were late too, and they are repeated soon.
// Good ones count.
func TestStoppedMachineBlamesNobody(t *testing.T) {
	for _, c := range []struct {
		verdict Verdict
		took    time.Duration
		void    bool
	}{
		{Bad, time.Minute, true}, {Bad, 1500 * time.Millisecond, true}, {Bad, 1499 * time.Millisecond, false}, {Bad, 500 * time.Millisecond, false},
		{Good, time.Minute, false},
	} {
		t.Run(fmt.Sprintf("%d after %v", c.verdict, c.took), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &asker{}
				r := newRig(t, a)
				set(t, r.Engine, targetsOf(1, checkOf(nil)))
				pass(c.took)
				a.take()
				a.say(0, Answer{Verdict: c.verdict, Silent: true, Words: "no bytes", Took: c.took})
				pass(100 * time.Millisecond)
				got := r.take()
				if len(got) != 1 || got[0].Void != c.void || got[0].Good != (c.verdict == Good) || got[0].Silent != (c.verdict == Bad && !c.void) {
					t.Fatalf("results are %+v", got)
				}
				pass(900 * time.Millisecond)
				if again := len(a.take()); c.void && again != 1 {
					t.Errorf("asked %d times within a second", again)
				}
			})
		})
	}
}

// TestStopOfOneTwice checks that a target listed twice among those to stop ends once.
func TestStopOfOneTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, time.Millisecond)}
		r := newRig(t, a)
		both := targetsOf(2, checkOf(nil))
		set(t, r.Engine, both)
		pass(100 * time.Millisecond)
		if err := r.Change(nil, []Target{both[0], both[0]}); err != nil {
			t.Fatal(err)
		}
		if s := r.Stats(); s.Targets != 1 || s.Means[0].Targets != 1 || a.known() != 1 {
			t.Errorf("%d targets are left, the asker knows %d", s.Targets, a.known())
		}
	})
}

package probe

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestCrowd checks that sockets probe the targets for which packets have no room, that these are
// counted, and that packets are tried again after PacketsRest.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := targetsOf(5, checkOf(nil))
		room := map[Target]bool{all[0]: true, all[1]: true}
		packets := &asker{answer: after(Good, 0), takes: func(t Target) error {
			if !room[t] {
				return fmt.Errorf("number 9: %w", ErrCrowded)
			}
			return nil
		}}
		sockets := &asker{answer: after(Good, 0)}
		r := newRig(t, packets, sockets)
		expect := func(what string, crowded, byPackets, bySockets int) {
			t.Helper()
			if s := r.Stats(); s.Crowded != crowded || s.Means[0].Targets != byPackets || s.Means[1].Targets != bySockets || s.Unaskable != 0 || s.Void != 0 || s.Bad != 0 {
				t.Errorf("%s: %+v", what, s)
			}
		}
		set(t, r.Engine, all)
		expect("room for two", 3, 2, 3)
		pass(PacketsRest + 10*time.Second)
		expect("no room yet", 3, 2, 3)
		packets.mu.Lock()
		room[all[2]] = true
		packets.mu.Unlock()
		pass(PacketsRest + 10*time.Second)
		expect("room for three", 2, 3, 2)
		if err := r.Change(nil, all[3:4]); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		expect("one left", 1, 3, 1)
		// Room for texts may run out later than room for a target.
		packets.says(func(x Target) (Answer, time.Duration) {
			return Answer{Verdict: Unsure, Words: "no room", Crowded: x == all[0]}, 0
		})
		pass(2 * time.Second)
		expect("no room for texts", 2, 0, 4)
		packets.says(after(Good, 0))
		pass(PacketsRest + 10*time.Second)
		expect("room for texts", 1, 3, 1)
		set(t, r.Engine, nil)
		expect("nothing", 0, 0, 0)
	})
}

// TestCrowdWithoutSockets checks that targets that no other prober accepts are counted, too.
func TestCrowdWithoutSockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, 0), takes: func(Target) error { return fmt.Errorf("number 9: %w", ErrCrowded) }}
		r := newRig(t, a)
		set(t, r.Engine, targetsOf(70, checkOf(nil)))
		if s := r.Stats(); s.Crowded != 70 || s.Unaskable != 70 || s.Targets != 0 {
			t.Errorf("%+v", s)
		}
		a.mu.Lock()
		a.takes = nil
		a.mu.Unlock()
		pass(offerAgain + time.Second)
		if s := r.Stats(); s.Crowded != 0 || s.Unaskable != 0 || s.Targets != 70 {
			t.Errorf("%+v", s)
		}
	})
}

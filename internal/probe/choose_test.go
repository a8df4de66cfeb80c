package probe

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestUnsureIsAskedBySockets checks that sockets probe an undecided target immediately, and that
// packets are suspended for PacketsRest.
func TestUnsureIsAskedBySockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packets, sockets := &asker{answer: after(Unsure, 10*time.Millisecond)}, &asker{answer: after(Bad, 10*time.Millisecond)}
		r := newRig(t, packets, sockets)
		set(t, r.Engine, targetsOf(1, checkOf(nil)))
		pass(50 * time.Millisecond)
		onTick(t, packets.take(), 0)
		onTick(t, sockets.take(), 10*time.Millisecond)
		if results := r.take(); len(results) != 1 || results[0].Good || results[0].Void {
			t.Fatalf("reported %+v", results)
		}
		pass(PacketsRest - time.Second)
		if got := packets.take(); len(got) != 0 {
			t.Fatalf("packets asked at %v", got)
		}
		if packets.known() != 0 || sockets.known() != 1 {
			t.Errorf("packets know %d targets, sockets %d", packets.known(), sockets.known())
		}
		packets.says(after(Good, 10*time.Millisecond))
		pass(3 * time.Second)
		sockets.take()
		r.take()
		pass(3 * time.Second)
		if p, s := packets.take(), sockets.take(); len(p) < 3 || len(s) != 0 {
			t.Errorf("packets asked %d times, sockets %d", len(p), len(s))
		}
		if s := r.Stats(); s.Unsure != 1 || s.Bad == 0 || s.Means[0].Targets != 1 || s.Means[1].Targets != 0 || s.Void != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestUnsureWithoutSocketsIsVoid checks that an undecided target that sockets do not accept is
// void, and is probed again.
func TestUnsureWithoutSocketsIsVoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packets := &asker{answer: after(Unsure, time.Millisecond)}
		sockets := &asker{takes: func(Target) error { return errors.New("no") }}
		r := newRig(t, packets, sockets)
		set(t, r.Engine, targetsOf(1, checkOf(nil)))
		pass(3 * time.Second)
		if results := r.take(); len(results) < 3 || !results[0].Void || results[0].Words != "packets could not decide it, and sockets cannot ask it" {
			t.Errorf("reported %+v", results)
		}
		if len(packets.take()) < 3 || packets.known() != 1 {
			t.Error("packets gave up")
		}
	})
}

// TestCandidates checks that the check's engine overrides the order, and that packets that failed
// are left out.
func TestCandidates(t *testing.T) {
	all := []Means{{Name: "loop"}, {Name: "packet", Packets: true}, {Name: "worker"}}
	for _, c := range []struct {
		engine string
		failed bool
		want   []int
	}{
		{"", false, []int{0, 1, 2}}, {"", true, []int{0, 2}},
		{lb.EngineSocket, false, []int{0, 2}}, {lb.EngineSocket, true, []int{0, 2}},
		{lb.EnginePacket, false, []int{1, 0, 2}}, {lb.EnginePacket, true, []int{0, 2}},
	} {
		if got := candidates(all, c.engine, c.failed); !slices.Equal(got, c.want) {
			t.Errorf("engine %q, packets failed %v: got %v, want %v", c.engine, c.failed, got, c.want)
		}
	}
}

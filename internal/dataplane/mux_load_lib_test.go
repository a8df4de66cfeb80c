package dataplane

import (
	"sync"
	"testing"
)

// TestLoadsNeverBorrow: CPUs that take connections off at once never take more than there are: what were below zero would be of the word's step.
func TestLoadsNeverBorrow(t *testing.T) {
	u := newUnitRun(t)
	const step = uint64(100) << muxMemberLoadShiftMEMBER_LOAD_STEP_SHIFT
	u.members[0] = step
	var wait sync.WaitGroup
	for cpu := range 2 {
		wait.Go(func() {
			onCPU(t, cpu, func() {
				options := runOptions(make([]byte, 14), xdpContext{DataEnd: 14})
				options.Repeat = 1 << 20
				if _, err := u.objects.UnitLoad.Run(options); err != nil {
					t.Error(err)
				}
			})
		})
	}
	wait.Wait()
	// A take that gave up leaves one counted.
	if w := load(&u.members[0]); w>>muxMemberLoadShiftMEMBER_LOAD_STEP_SHIFT != step>>muxMemberLoadShiftMEMBER_LOAD_STEP_SHIFT || (w-step)%100 != 0 || w-step > 1<<32 {
		t.Errorf("the word of the load became %#x", w)
	}
}

// TestLoadTakes: one is taken off where there is one, and none of less than one.
func TestLoadTakes(t *testing.T) {
	u := newUnitRun(t)
	const step = uint64(100) << muxMemberLoadShiftMEMBER_LOAD_STEP_SHIFT
	for before, after := range map[uint64]uint64{0: 0, step: step, step | 99: step | 99, step | 100: step, step | 250: step | 150} {
		u.members[0] = before
		if _, err := u.objects.UnitLoad.Run(runOptions(make([]byte, 14), xdpContext{DataEnd: 14})); err != nil {
			t.Fatal(err)
		}
		if got := u.members[0]; got != after {
			t.Errorf("%#x became %#x, want %#x", before, got, after)
		}
	}
}

package benchrun

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Pinned runs f on a thread that stays on the given CPU, without garbage collections in between.
func Pinned(cpu int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Not unlocked: the thread ends with the goroutine and its affinity with it.
		runtime.LockOSThread()
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- fmt.Errorf("pin thread to CPU %d: %w", cpu, err)
			return
		}
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		done <- f()
	}()
	return <-done
}

// LastCPU is the CPU that measurements are pinned to: the last one this process may use, as the first serves most
// interrupts.
func LastCPU() (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("read CPU affinity: %w", err)
	}
	for cpu := len(set)*64 - 1; cpu >= 0; cpu-- {
		if set.IsSet(cpu) {
			return cpu, nil
		}
	}
	return 0, fmt.Errorf("read CPU affinity: no CPU")
}

package benchrun

import (
	"errors"
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
	cpus, err := CPUs()
	if err != nil {
		return 0, err
	}
	return cpus[len(cpus)-1], nil
}

// CPUs lists those that this process may use; there is at least one.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	if len(cpus) == 0 {
		return nil, errors.New("read CPU affinity: no CPU")
	}
	return cpus, nil
}

// PinThread keeps the goroutine on one CPU until the returned function is called.
func PinThread(cpu int) (unpin func(), err error) {
	runtime.LockOSThread()
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("pin thread to CPU %d: %w", cpu, err)
	}
	return func() {
		if unix.SchedSetaffinity(0, &before) == nil {
			runtime.UnlockOSThread()
		}
	}, nil
}

package remote

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A router withdraws all routes of a mux whose BFD is late by 300 ms. The speaker needs little CPU, but it needs it in time, also while all
// CPUs are full: it runs in a real-time class, at the lowest priority of that class (sched(7)), or with the best nice value where the
// system refuses that.
const (
	realTimePriority = 1
	niceValue        = -20
)

// scheduledEnv says to the program that Schedule starts how it is scheduled.
const scheduledEnv = "SHUNT_SPEAKER_SCHEDULED"

// Schedule gives this process priority over others and returns how it is scheduled, in words, and why not in the real-time class. Threads of a
// running Go program have a scheduling class each, so that it executes the program again, from a thread that has the wanted one: all threads
// inherit it. The caller must not have done anything yet that the program would do twice.
func Schedule() (how string, err error) {
	if done, ok := os.LookupEnv(scheduledEnv); ok {
		how, fault, refused := strings.Cut(done, ": ")
		if refused {
			err = errors.New(fault)
		}
		return how, err
	}
	runtime.LockOSThread() // until the program is replaced
	how = fmt.Sprintf("SCHED_RR priority %d", realTimePriority)
	if err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: realTimePriority}, 0); err != nil {
		err = fmt.Errorf("set SCHED_RR: %w", err)
		how = fmt.Sprintf("nice %d", niceValue)
		if niceErr := unix.Setpriority(unix.PRIO_PROCESS, 0, niceValue); niceErr != nil {
			how, err = "as other processes", errors.Join(err, fmt.Errorf("set nice %d: %w", niceValue, niceErr))
		}
	}
	word := how
	if err != nil {
		word += ": " + strings.ReplaceAll(err.Error(), "\n", ", ")
	}
	if failed := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), scheduledEnv+"="+word)); failed != nil {
		return how, errors.Join(err, fmt.Errorf("execute the speaker again: %w", failed))
	}
	panic("unreachable")
}

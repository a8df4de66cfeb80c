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

// A router withdraws all routes of a mux whose BFD is late by 300 ms. The speaker needs little CPU
// time, but it needs it promptly, also while all CPUs are busy. So it runs in a real-time class, at
// the lowest priority of that class (sched(7)), or with the best nice value if the system refuses
// that.
const (
	realTimePriority = 1
	niceValue        = -20
)

// scheduledEnv passes the scheduling class to the program that Schedule executes.
const scheduledEnv = "SHUNT_SPEAKER_SCHEDULED"

// Schedule gives this process priority over others. It returns a description of its scheduling, and
// why it is not in the real-time class. Each thread of a running Go program has its own scheduling
// class, so that Schedule executes the program again from a thread with the wanted class, which all
// threads inherit. The caller must not have done anything yet that must not be done twice.
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

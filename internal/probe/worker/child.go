package worker

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// childName is what a process is called that is to become a program: its arguments are the user's and the group's number, the
	// limit of CPU time in seconds, the file and then the program's own, its name first.
	childName = "shunt-check"
	// childPipe is the descriptor by which it says how that went.
	childPipe = 3
	// childReady is said before the program takes its place; what is said after it, or instead, is why it did not.
	childReady = "\x00"
)

// Child turns a process that an Asker started into the program that it is to run, as its user and within its limits, and does not
// return then. Whoever uses external checks calls it first of all: the process is the same executable again.
func Child() {
	if len(os.Args) < 6 || os.Args[0] != childName {
		return
	}
	// What a thread gives up counts for the program when that thread becomes it.
	runtime.LockOSThread()
	err := become(os.Args[1:])
	_, _ = unix.Write(childPipe, []byte(err.Error()))
	os.Exit(1)
}

// become returns only why it could not.
func become(args []string) error {
	// What this process was started with beside the first three may be the agent's parent's.
	if err := unix.CloseRange(childPipe, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	var numbers [3]int
	for i := range numbers {
		n, err := strconv.ParseUint(args[i], 10, 31)
		if err != nil {
			return err
		}
		numbers[i] = int(n)
	}
	uid, gid, seconds := numbers[0], numbers[1], uint64(numbers[2])
	if err := (User{UID: uint32(uid), GID: uint32(gid)}).validate(); err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
		return fmt.Errorf("become user %d, group %d: %w", uid, gid, err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the agent: %w", err)
	}
	file, argv, environment := args[3], args[4:], os.Environ()
	for _, l := range limits(seconds) {
		var now unix.Rlimit
		if err := unix.Getrlimit(l.resource, &now); err != nil {
			return fmt.Errorf("read limit %d: %w", l.resource, err)
		}
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: min(l.soft, now.Max), Max: min(l.hard, now.Max)}); err != nil {
			return fmt.Errorf("set limit %d: %w", l.resource, err)
		}
	}
	_, _ = unix.Write(childPipe, []byte(childReady))
	return syscall.Exec(file, argv, environment)
}

// limit is one resource limit (setrlimit(2)).
type limit struct {
	resource   int
	soft, hard uint64
}

// limits are those of a program that has so many seconds of CPU time. It can write to no file.
func limits(seconds uint64) []limit {
	return []limit{
		{unix.RLIMIT_CPU, seconds, seconds + 1},
		{unix.RLIMIT_NOFILE, maxProgramFiles, maxProgramFiles},
		{unix.RLIMIT_NPROC, maxProgramProcesses, maxProgramProcesses},
		{unix.RLIMIT_FSIZE, 0, 0},
		{unix.RLIMIT_CORE, 0, 0},
		{unix.RLIMIT_DATA, maxProgramMemory, maxProgramMemory},
		{unix.RLIMIT_AS, maxProgramSpace, maxProgramSpace},
	}
}

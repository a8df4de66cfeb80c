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
	// childName is argv[0] of a process that is to become a program. Its arguments are the user id,
	// the group id, the limit of CPU time in seconds, the file and then the program's own argv.
	childName = "shunt-check"
	// childPipe is the descriptor on which the child reports its progress.
	childPipe = 3
	// childReady is written before the child executes the program. Any text after it, or without
	// it, is the reason of a failure.
	childReady = "\x00"
)

// Child turns a process that an Asker started into the program to run, as its user and within its
// limits, and then does not return. In any other process it returns immediately. A main that uses
// external checks must call it first, because the process runs the same executable.
func Child() {
	if len(os.Args) < 6 || os.Args[0] != childName {
		return
	}
	// Privileges that a thread drops stay dropped for the program if that thread executes it.
	runtime.LockOSThread()
	err := become(os.Args[1:])
	_, _ = unix.Write(childPipe, []byte(err.Error()))
	os.Exit(1)
}

// become executes the program. It returns only on failure, with the reason.
func become(args []string) error {
	// Descriptors above the first three may be inherited from the agent's parent.
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

// limits returns the limits of a program with this much CPU time. It can write to no file.
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

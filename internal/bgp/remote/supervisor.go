package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Timing of supervision.
const (
	// startPatience is how long a new process may take until its first response.
	startPatience = 5 * time.Second
	// startPoll is the interval of the requests to it.
	startPoll = 10 * time.Millisecond
	// restartWait is the least time between two starts, so that a speaker that cannot start does
	// not spin.
	restartWait = time.Second
)

// Supervisor keeps one speaker process alive: it adopts a running one and starts another when there
// is none.
type Supervisor struct {
	// Client reaches the process.
	Client *Client
	// Command is the program and its arguments. They must contain no secret.
	Command []string
	Log     *slog.Logger
	// last is when a process was started.
	last time.Time
	// answered: a process responded and was not ended by Stop since then, so that the next one is
	// its replacement.
	answered bool
}

// RestartingFlag is the argument of a speaker that replaces one that ended without closing its
// sessions: routers that support graceful restart (RFC 4724) keep the routes for it.
const RestartingFlag = "--restarting"

// Ensure returns when a speaker responds. started: it is a new one without state.
func (s *Supervisor) Ensure(ctx context.Context) (started bool, err error) {
	if _, err := s.Client.Status(ctx); err == nil {
		s.answered = true
		return false, nil
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if wait := time.Until(s.last.Add(restartWait)); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	s.last = time.Now()
	ended, err := s.start()
	if err != nil {
		return false, fmt.Errorf("start speaker: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		if _, err := s.Client.Status(ctx); err == nil {
			s.answered = true
			return true, nil
		}
		select {
		case err := <-ended:
			return false, fmt.Errorf("start speaker: it ended at once: %v", err)
		case <-ctx.Done():
			return false, fmt.Errorf("start speaker: no answer within %v", startPatience)
		case <-time.After(startPoll):
		}
	}
}

// Replace ends the running speaker and returns when another one responds, which has no state yet.
// With keep it kills the speaker, so that routers that support graceful restart keep its routes for
// the next one; else the speaker closes its sessions, which withdraws the routes.
func (s *Supervisor) Replace(ctx context.Context, keep bool) error {
	if !keep {
		if err := s.Client.Stop(ctx); err != nil {
			return err
		}
		s.answered = false
	} else if err := s.kill(ctx); err != nil {
		return fmt.Errorf("replace speaker: %w", err)
	}
	_, err := s.Ensure(ctx)
	return err
}

// kill ends the running process without closing its sessions, and returns when it has ended.
func (s *Supervisor) kill(ctx context.Context) error {
	status, err := s.Client.Status(ctx)
	if err != nil {
		return err
	}
	pid := status.Process.PID
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// The pid may have been reused before the pidfd was opened, but not since.
	if again, err := s.Client.Status(ctx); err != nil {
		return err
	} else if again.Process.PID != pid {
		return fmt.Errorf("process %d answers now, not %d", again.Process.PID, pid)
	}
	s.answered = true
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	// A pidfd is readable when the process has ended.
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(startPatience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
		if n == 0 {
			return fmt.Errorf("process %d has not ended within %v", pid, startPatience)
		}
		return s.Client.Close() // its connection
	}
}

// start runs the process in its own session, so that no signal to the agent's group reaches it.
func (s *Supervisor) start() (<-chan error, error) {
	args := s.Command[1:]
	if s.answered {
		args = append(slices.Clone(args), RestartingFlag)
	}
	cmd := exec.Command(s.Command[0], args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.Log.Info("speaker started", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		s.Log.Info("speaker ended", "pid", cmd.Process.Pid, "state", cmd.ProcessState)
		ended <- err
	}()
	return ended, nil
}

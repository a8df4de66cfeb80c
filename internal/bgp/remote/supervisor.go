package remote

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Timing of supervision.
const (
	// startPatience is how long a new process may take to answer.
	startPatience = 5 * time.Second
	// startPoll is how often it is asked.
	startPoll = 10 * time.Millisecond
	// restartWait lies between two starts, so that a speaker that cannot start does not spin.
	restartWait = time.Second
)

// Supervisor keeps one speaker process alive: it adopts a running one and starts another when there is none.
type Supervisor struct {
	// Client reaches the process.
	Client *Client
	// Command starts it: the program and its arguments. No secret may be among them.
	Command []string
	Log     *slog.Logger
	// last is when a process was started.
	last time.Time
}

// Ensure returns when a speaker answers. started tells that it is a new one, which knows nothing yet.
func (s *Supervisor) Ensure(ctx context.Context) (started bool, err error) {
	if _, err := s.Client.Status(ctx); err == nil {
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

// start runs the process in a session of its own, so that no signal to the agent's group reaches it.
func (s *Supervisor) start() (<-chan error, error) {
	cmd := exec.Command(s.Command[0], s.Command[1:]...)
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

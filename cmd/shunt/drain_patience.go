package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// drainWait holds the flags of a drain with --wait.
type drainWait struct {
	on bool
	// timeout bounds the wait. 0 means no bound.
	timeout time.Duration
}

func (w *drainWait) register(cmd *cobra.Command, until string) {
	cmd.Flags().BoolVar(&w.on, "wait", false, until)
	cmd.Flags().DurationVar(&w.timeout, "timeout", 0, "how long to wait at most; the drain goes on when it has passed, and the exit code is 1; 0: for as long as it takes")
}

func (w *drainWait) check() error {
	switch {
	case w.timeout < 0:
		return usagef("--timeout: %s: must be 0 or longer", w.timeout)
	case w.timeout > 0 && !w.on:
		return usagef("--timeout: --wait is missing")
	}
	return nil
}

// waitFor runs a loop that requests the status of a node, or of all nodes, and pauses for a
// drainPoll, repeatedly. It fails on timeout.
func (g *globals) waitFor(ctx context.Context, w drainWait, node string, loop func(status func() (*apiv1.StatusResponse, error), pause func() error) error) error {
	if w.timeout > 0 {
		bounded, cancel := context.WithTimeout(ctx, w.timeout)
		defer cancel()
		ctx = bounded
	}
	status := func() (status *apiv1.StatusResponse, err error) {
		err = g.call(ctx, func(ctx context.Context, c *client) error {
			status, err = c.status(ctx, node)
			return err
		})
		return status, err
	}
	pause := func() error {
		select {
		case <-time.After(drainPoll):
			return nil
		case <-ctx.Done():
			return fmt.Errorf("wait for the drain: %w", ctx.Err())
		}
	}
	err := loop(status, pause)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("--timeout: %s have passed, the drain goes on", w.timeout)
	}
	return err
}

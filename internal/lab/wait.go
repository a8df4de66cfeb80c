package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// pollEvery is the poll interval of conditions without notification.
const pollEvery = 20 * time.Millisecond

// waitFor polls a condition until it is met (nil), cannot be met any more (stop) or the context
// ends. The error then contains the condition's last error.
func waitFor(ctx context.Context, what string, condition func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		if fatal := (stop{}); errors.As(err, &fatal) {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

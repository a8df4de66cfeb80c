package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// pollEvery is how often a condition is looked at that nothing announces.
const pollEvery = 20 * time.Millisecond

// waitFor looks at a condition until it is met (nil), cannot be met any more (stop) or the context ends; the error
// then says what was missing last.
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

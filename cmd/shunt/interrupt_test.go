package main

import (
	"context"
	"errors"
	"io"
	"testing"
)

// TestInterruptedInput checks that a command that waits for its standard input ends when its
// context is canceled.
func TestInterruptedInput(t *testing.T) {
	silent, writer := io.Pipe()
	defer writer.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, verb := range []string{"apply", "diff", "delete"} {
		root := newRoot()
		root.SetArgs([]string{verb, "-f", "-"})
		root.SetIn(silent)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want %v", verb, err, context.Canceled)
		}
	}
}

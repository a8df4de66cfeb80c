package manager

import (
	"context"
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/clock"
)

// asker is a pending claim.
type asker struct {
	got  chan *claim
	fail chan error
}

func ask(t *testing.T, b *budget, ctx context.Context, size int64, forwards bool) asker {
	t.Helper()
	a := asker{make(chan *claim, 1), make(chan error, 1)}
	queue := 1
	if forwards {
		queue = 0
	}
	length := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waiting[queue])
	}
	before := length()
	go func() {
		c, err := b.take(ctx, size, forwards)
		a.got <- c
		a.fail <- err
	}()
	for length() == before { // the claim queues, because the budget is used up
	}
	return a
}

// TestBudgetIsInOrder checks that nodes that already forward go first, that a smaller claim does
// not overtake a larger one, and that an abandoned claim does not block others.
func TestBudgetIsInOrder(t *testing.T) {
	fake := clock.NewFake(time.Unix(0, 0))
	b := newBudget(fake, 100)
	all, err := b.take(t.Context(), 100, false)
	if err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancelCause(t.Context())
	quitter := ask(t, b, gone, 100, false)
	big, small, muxs := ask(t, b, t.Context(), 80, false), ask(t, b, t.Context(), 30, false), ask(t, b, t.Context(), 90, true)
	cause := errors.New("it left")
	leave(cause)
	if c := <-quitter.got; c != nil {
		t.Error("who left got a share")
	}
	if err := <-quitter.fail; !errors.Is(err, cause) {
		t.Errorf("%v, want %v", err, cause)
	}
	all.back()
	all.back() // has no effect
	first := <-muxs.got
	if len(big.got)+len(small.got) > 0 {
		t.Error("more was given out than there is")
	}
	first.back()
	second := <-big.got
	if len(small.got) > 0 {
		t.Error("30 of 100 beside 80")
	}
	second.back()
	(<-small.got).back()
	if b.free != 100 {
		t.Errorf("%d left, want 100", b.free)
	}
}

// TestCrowdIsSentAway checks that a node that waits too long gets an error with the retry delay in
// the form that agents understand.
func TestCrowdIsSentAway(t *testing.T) {
	fake := clock.NewFake(time.Unix(0, 0))
	b := newBudget(fake, 1)
	c, err := b.take(t.Context(), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	late := ask(t, b, t.Context(), 1, true)
	for fake.Waiting() == 0 {
	}
	fake.Advance(claimPatience)
	<-late.got
	ce := new(connect.Error)
	if err := <-late.fail; !errors.As(err, &ce) || ce.Code() != connect.CodeResourceExhausted {
		t.Fatal(err)
	}
	if d, err := time.ParseDuration(ce.Meta().Get(agent.RetryAfterHeader)); err != nil || d <= 0 {
		t.Errorf("%v: %v", ce.Meta(), err)
	}
	c.back()
	if c, err := b.take(t.Context(), 1, false); err != nil || c == nil {
		t.Errorf("the one who was sent away is in the way: %v", err)
	}
}

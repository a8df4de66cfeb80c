package manager

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
)

// lateStore answers renewals when the test does, however long ago they were sent.
type lateStore struct {
	store.Store
	asked chan chan error
}

func (s lateStore) Renew(context.Context, store.LeaseID) error {
	answer := make(chan error)
	s.asked <- answer
	return <-answer
}

// TestLateRenewalsKeepTheTerm: a leader keeps its term although the store's answers take longer
// than the renewal interval, if the store renewed the lease in time. The lease counts from when the
// renewal was sent.
func TestLateRenewalsKeepTheTerm(t *testing.T) {
	fake := clock.NewFake(time.Unix(1000, 0))
	s := lateStore{store.NewMemory(), make(chan chan error)}
	m := &Manager{o: Options{Store: s, Clock: fake}}
	m.ctx, m.cancel = context.WithCancelCause(t.Context())
	began := fake.Now()
	term := newTerm(m, 1, 1, 1, began)
	kept := make(chan struct{})
	go func() {
		term.keep()
		close(kept)
	}()
	ask := func() chan error {
		for fake.Waiting() == 0 {
			time.Sleep(time.Millisecond)
		}
		fake.Advance(leaseRenew)
		return <-s.asked
	}
	first, second, third := ask(), ask(), ask() // at 0.5, 1 and 1.5 seconds
	second <- nil
	for term.lastRenewed() != began.Add(2*leaseRenew) {
		time.Sleep(time.Millisecond)
	}
	first <- nil // an earlier renewal no longer counts
	fourth := ask()
	third <- context.DeadlineExceeded
	fifth, sixth := ask(), ask() // at 3 seconds, two after the renewal
	fourth <- context.DeadlineExceeded
	select {
	case <-term.ctx.Done():
		t.Fatalf("the term ended within the lease: %v", context.Cause(term.ctx))
	case <-time.After(10 * time.Millisecond):
	}
	if got := term.lastRenewed(); got != began.Add(2*leaseRenew) {
		t.Errorf("renewed %v after the beginning, want %v", got.Sub(began), 2*leaseRenew)
	}
	seventh := ask()
	fifth <- context.DeadlineExceeded
	<-term.ctx.Done()
	if cause := context.Cause(term.ctx); !errors.Is(cause, context.DeadlineExceeded) {
		t.Errorf("the term ended: %v", cause)
	}
	// No work of the term continues after keep has returned.
	sixth <- nil
	select {
	case <-kept:
		t.Error("keep returned while a renewal was under way")
	default:
	}
	seventh <- nil
	<-kept
}

// TestLostLeaseEndsTheTerm: a lost lease ends the term immediately, whatever the clock shows.
func TestLostLeaseEndsTheTerm(t *testing.T) {
	fake := clock.NewFake(time.Unix(1000, 0))
	s := lateStore{store.NewMemory(), make(chan chan error)}
	m := &Manager{o: Options{Store: s, Clock: fake}}
	m.ctx, m.cancel = context.WithCancelCause(t.Context())
	term := newTerm(m, 1, 1, 1, fake.Now())
	kept := make(chan struct{})
	go func() {
		term.keep()
		close(kept)
	}()
	for fake.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	fake.Advance(leaseRenew)
	(<-s.asked) <- store.ErrLeaseLost
	<-kept
	if cause := context.Cause(term.ctx); !errors.Is(cause, store.ErrLeaseLost) {
		t.Errorf("the term ended: %v", cause)
	}
}

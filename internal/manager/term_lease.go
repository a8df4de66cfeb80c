package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// Times of a lease. A leader that is gone is replaced after leaseTTL. It sends a renewal every
// leaseRenew, whether or not the previous one was answered, because a store that is slow to answer
// has still renewed the lease.
const (
	leaseTTL   = 2 * time.Second
	leaseRenew = leaseTTL / 4
	// revokeTimeout bounds the revocation of a lease, which would expire anyway.
	revokeTimeout = time.Second
)

// renewal is the result of one renewal. The lease lasts from when the renewal was sent, not from
// the answer.
type renewal struct {
	asked time.Time
	err   error
}

// keep renews the lease until the term ends, and ends the term when the lease is lost or may be.
// When it returns, no renewal is in progress.
func (t *term) keep() {
	ended := make(chan renewal)
	underWay := 0
	defer func() {
		for range underWay {
			<-ended
		}
	}()
	next := t.m.o.Clock.After(leaseRenew)
	for {
		select {
		case <-next:
			next = t.m.o.Clock.After(leaseRenew)
			underWay++
			go func() { ended <- t.renew() }()
		case r := <-ended:
			underWay--
			t.judge(r)
		case <-t.ctx.Done():
			return
		}
	}
}

// renew sends one renewal. An answer that takes longer than the lease counts as a failure.
func (t *term) renew() renewal {
	asked := t.m.o.Clock.Now()
	ctx, cancel := context.WithTimeout(t.ctx, leaseTTL)
	defer cancel()
	return renewal{asked, t.m.o.Store.Renew(ctx, t.lease)}
}

// judge evaluates the result of a renewal.
func (t *term) judge(r renewal) {
	switch {
	case r.err == nil:
		t.mu.Lock()
		if r.asked.After(t.renewed) {
			t.renewed = r.asked
		}
		t.mu.Unlock()
	case errors.Is(r.err, store.ErrLeaseLost), errors.Is(r.err, store.ErrClosed):
		t.end(r.err)
	case t.m.o.Clock.Now().Sub(t.lastRenewed()) > leaseTTL:
		t.end(fmt.Errorf("cannot renew the lease: %w", r.err))
	}
}

package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// Times of a lease. A leader that is gone is replaced after leaseTTL. It asks for a renewal every leaseRenew, whether the
// one before was answered or not: a store that is slow to answer has renewed the lease none the less.
const (
	leaseTTL   = 2 * time.Second
	leaseRenew = leaseTTL / 4
	// revokeTimeout bounds the giving up of a lease: it lapses by itself.
	revokeTimeout = time.Second
)

// renewal is the end of one. The lease lasts from when it was asked for, not from the answer.
type renewal struct {
	asked time.Time
	err   error
}

// keep renews the lease until the term ends, or ends the term when the lease is lost or may be. No renewal goes on
// afterwards.
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

// renew asks for one renewal. An answer that takes longer than the lease is none.
func (t *term) renew() renewal {
	asked := t.m.o.Clock.Now()
	ctx, cancel := context.WithTimeout(t.ctx, leaseTTL)
	defer cancel()
	return renewal{asked, t.m.o.Store.Renew(ctx, t.lease)}
}

// judge takes in how a renewal ended.
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

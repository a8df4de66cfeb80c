package manager

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

const (
	// tenantReads is the number of reads and node queries of one tenant that are computed
	// concurrently. More wait. It is far below the size of a node's request queue.
	tenantReads = 8
	// tenantReadsWaiting bounds the waiting reads of one tenant.
	tenantReadsWaiting = 64
)

// readTurns bounds the reads of each tenant.
type readTurns struct {
	waiting int
	mu      sync.Mutex
	tenants map[string]*readTurn
}

// readTurn counts the reads of one tenant.
type readTurn struct {
	running chan struct{} // has an element for each read that is computed
	calls   int           // running and waiting; readTurns.mu guards it; never 0
}

// newReadTurns returns readTurns that allow the given number of waiting reads per tenant.
func newReadTurns(waiting int) *readTurns {
	return &readTurns{waiting: waiting, tenants: map[string]*readTurn{}}
}

// begin waits until the tenant may start a read. The returned function ends the read.
func (r *readTurns) begin(ctx context.Context, tenant string) (end func(), err error) {
	r.mu.Lock()
	t := r.tenants[tenant]
	if t == nil {
		t = &readTurn{running: make(chan struct{}, tenantReads)}
		r.tenants[tenant] = t
	}
	if t.calls >= tenantReads+r.waiting {
		r.mu.Unlock()
		return nil, tooMany(fmt.Sprintf("tenants/%s: %d reads wait, at most %d may", tenant, r.waiting, r.waiting), time.Second)
	}
	t.calls++
	r.mu.Unlock()
	leave := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if t.calls--; t.calls == 0 {
			delete(r.tenants, tenant)
		}
	}
	select {
	case t.running <- struct{}{}:
		return func() { <-t.running; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// turn bounds the reads of a tenant. Requests that change objects have their own bounds (lanes).
func (g guard) turn(ctx context.Context, tenant string, req proto.Message) (end func(), err error) {
	if _, changes := req.(interface{ GetDryRun() bool }); changes {
		return func() {}, nil
	}
	return g.reads.begin(ctx, tenant)
}

type turnsKey struct{}

// withTurns returns a context with which the handler of a tenant's stream calls takeTurn for its
// computations.
func (g guard) withTurns(ctx context.Context, tenant string) context.Context {
	return context.WithValue(ctx, turnsKey{}, func(ctx context.Context) (func(), error) { return g.streamReads.begin(ctx, tenant) })
}

// takeTurn waits until the handler of a stream may compute the next message. The returned function
// ends the turn. Do not keep a turn while sending, because the client may not read.
func takeTurn(ctx context.Context) (end func(), err error) {
	if begin, ok := ctx.Value(turnsKey{}).(func(context.Context) (func(), error)); ok {
		return begin(ctx)
	}
	return func() {}, nil
}

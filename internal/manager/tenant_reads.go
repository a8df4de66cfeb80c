package manager

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

const (
	// tenantReads is how many reads and questions to nodes of one tenant are computed at once; more wait for their turn. It is far below
	// what a node's queue of questions holds.
	tenantReads = 8
	// tenantReadsWaiting bounds the reads of one tenant that wait.
	tenantReadsWaiting = 64
)

// readTurns bound the reads of each tenant.
type readTurns struct {
	waiting int
	mu      sync.Mutex
	tenants map[string]*readTurn
}

// readTurn is one tenant's.
type readTurn struct {
	running chan struct{} // has an element for each read that is computed
	calls   int           // running and waiting; readTurns.mu guards it; never 0
}

// newReadTurns are turns for which so many of a tenant wait at most.
func newReadTurns(waiting int) *readTurns {
	return &readTurns{waiting: waiting, tenants: map[string]*readTurn{}}
}

// begin waits for the tenant's turn. The returned function ends the read.
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

// turn bounds the reads of a tenant. Requests that change something have bounds of their own (lanes).
func (g guard) turn(ctx context.Context, tenant string, req proto.Message) (end func(), err error) {
	if _, changes := req.(interface{ GetDryRun() bool }); changes {
		return func() {}, nil
	}
	return g.reads.begin(ctx, tenant)
}

type turnsKey struct{}

// withTurns lets the handler of a tenant's stream take turns for what it computes.
func (g guard) withTurns(ctx context.Context, tenant string) context.Context {
	return context.WithValue(ctx, turnsKey{}, func(ctx context.Context) (func(), error) { return g.streamReads.begin(ctx, tenant) })
}

// takeTurn waits until the handler of a stream may compute what it sends next. The returned function ends the turn; a stream that does not read
// what it is sent must not keep one.
func takeTurn(ctx context.Context) (end func(), err error) {
	if begin, ok := ctx.Value(turnsKey{}).(func(context.Context) (func(), error)); ok {
		return begin(ctx)
	}
	return func() {}, nil
}

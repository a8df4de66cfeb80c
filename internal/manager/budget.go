package manager

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
)

const (
	// snapshotBytes bounds what is being sent of large updates, all nodes together: as an agent's limit, one of the largest
	// fits.
	snapshotBytes = 256 << 20
	// weighedFrom is from how many items on an update counts as large though it is no snapshot.
	weighedFrom = 1000
	// claimLife is how long a claim counts: a node that does not read holds up the others for no longer. So the bound is
	// snapshotBytes in any claimLife, and a stuck one ends after NodeTimeout: 1.5 GiB if all are.
	claimLife = 5 * time.Second
	// claimPatience is how long a node waits for its turn; claimRetry is what it is told to wait then.
	claimPatience = 10 * time.Second
	claimRetry    = "2s"
)

// headerRetryAfter tells a node how long to leave this manager alone; agents know it by the same name.
const headerRetryAfter = "shunt-retry-after"

var errCrowded = errors.New("too many nodes ask for their plans at once")

// budget bounds bytes that are being sent. Those who ask are served in order, nodes that forward already first: it is
// their flows that an old plan breaks.
type budget struct {
	clock clock.Clock
	mu    sync.Mutex
	free  int64
	// waiting are claims on more than is free: of nodes that forward, and of others.
	waiting [2][]*claim
}

// claim is a share of a budget.
type claim struct {
	size  int64
	ready chan struct{} // closed when it is granted
	// back gives the share back; the first call counts.
	back func()
}

func newBudget(c clock.Clock, bytes int64) *budget { return &budget{clock: c, free: bytes} }

// take waits for a share; whoever gets it calls back. The size must not exceed the whole budget.
func (b *budget) take(ctx context.Context, size int64, forwards bool) (*claim, error) {
	c := &claim{size: size, ready: make(chan struct{})}
	c.back = sync.OnceFunc(func() { b.give(size) })
	at := 1
	if forwards {
		at = 0
	}
	b.mu.Lock()
	b.waiting[at] = append(b.waiting[at], c)
	b.grantLocked()
	b.mu.Unlock()
	select {
	case <-c.ready:
		return c, nil
	default:
	}
	var err error
	select {
	case <-c.ready:
		return c, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-b.clock.After(claimPatience):
		err = crowded()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting[at], c); i >= 0 {
		b.waiting[at] = slices.Delete(b.waiting[at], i, i+1)
		b.grantLocked()
		return nil, err
	}
	return c, nil // granted meanwhile
}

func (b *budget) give(size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += size
	b.grantLocked()
}

// grantLocked serves who waits, in order.
func (b *budget) grantLocked() {
	for at := range b.waiting {
		for len(b.waiting[at]) > 0 {
			c := b.waiting[at][0]
			if c.size > b.free {
				return
			}
			b.free -= c.size
			b.waiting[at] = b.waiting[at][1:]
			close(c.ready)
		}
	}
}

// crowded sends a node away for a while.
func crowded() *connect.Error {
	err := connect.NewError(connect.CodeResourceExhausted, errCrowded)
	err.Meta().Set(headerRetryAfter, claimRetry)
	return err
}

// within sends an update in its turn.
func (m *Manager) within(s *session, up *apiv1.PlanUpdate, send func() error) error {
	if !up.GetSnapshot() && len(up.GetUpsert()) < weighedFrom {
		return send()
	}
	c, err := m.budget.take(s.ctx, min(int64(proto.Size(up)), snapshotBytes), s.forwards)
	if err != nil {
		return err
	}
	defer c.back()
	life := time.AfterFunc(claimLife, c.back)
	defer life.Stop()
	return send()
}

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
	// snapshotBytes bounds the bytes of large updates that are being sent, to all nodes together.
	// It equals an agent's limit, so that one update of the largest size fits.
	snapshotBytes = 256 << 20
	// weighedFrom is the number of items from which an update counts as large although it is no
	// snapshot.
	weighedFrom = 1000
	// claimLife is how long a claim counts, because a node that does not read must not delay the
	// others for longer. So the bound is snapshotBytes in any claimLife. A stuck update ends after
	// NodeTimeout: 1.5 GiB if all are stuck.
	claimLife = 5 * time.Second
	// claimPatience is how long a node waits for its turn. claimRetry is the delay that it is sent
	// then.
	claimPatience = 10 * time.Second
	claimRetry    = "2s"
)

// headerRetryAfter is the header with the time for which a node shall not call this manager. Agents
// use the same name.
const headerRetryAfter = "shunt-retry-after"

var errCrowded = errors.New("too many nodes ask for their plans at once")

// budget bounds the bytes that are being sent. Claims are granted in order, those of nodes that
// already forward first, because an old plan breaks their flows.
type budget struct {
	clock clock.Clock
	mu    sync.Mutex
	free  int64
	// waiting holds the claims that exceed the free bytes: index 0 is for nodes that forward, 1 for
	// others.
	waiting [2][]*claim
}

// claim is a share of a budget.
type claim struct {
	size  int64
	ready chan struct{} // closed when it is granted
	// back returns the share to the budget. Only the first call has an effect.
	back func()
}

func newBudget(c clock.Clock, bytes int64) *budget { return &budget{clock: c, free: bytes} }

// take waits for a share of the budget. The caller must call back on the claim. The size must not
// exceed the whole budget.
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

// grantLocked grants waiting claims in order.
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

// crowded returns the error that makes a node retry later.
func crowded() *connect.Error {
	err := connect.NewError(connect.CodeResourceExhausted, errCrowded)
	err.Meta().Set(headerRetryAfter, claimRetry)
	return err
}

// within sends an update. A large one first waits for its share of the budget.
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

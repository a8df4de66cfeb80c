package manager

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// barrierTimeout bounds a barrier, so that a member without a majority reports an error.
const barrierTimeout = 3 * time.Second

// barriers shares read indexes of the store between callers. A caller that arrives while one is
// under way waits for the next one, together with all others that arrived meanwhile, because a read
// index that began earlier may miss writes acknowledged since.
type barriers struct {
	mu            sync.Mutex
	running, next *barrier
}

type barrier struct {
	done     chan struct{}
	revision int64
	err      error
}

// catchUp returns when the view holds every write acknowledged before the call, by any member.
func (m *Manager) catchUp(ctx context.Context) error {
	b := m.barriers.join(m.barrier)
	select {
	case <-b.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if b.err != nil {
		return fmt.Errorf("the store does not answer: %w", b.err)
	}
	return m.view.wait(ctx, b.revision)
}

// current is catchUp for callers that only need the leader's state. It does not wait while this
// member leads, because its view holds that state.
func (m *Manager) current(ctx context.Context) error {
	if _, err := m.lead(ctx); err == nil {
		return nil
	}
	return m.catchUp(ctx)
}

func (m *Manager) barrier() (int64, error) {
	ctx, cancel := context.WithTimeout(m.ctx, barrierTimeout)
	defer cancel()
	return m.o.Store.Barrier(ctx)
}

// join returns a barrier that begins after the call.
func (bs *barriers) join(read func() (int64, error)) *barrier {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.next == nil {
		bs.next = &barrier{done: make(chan struct{})}
		if bs.running == nil {
			bs.beginLocked(read)
			return bs.running
		}
	}
	return bs.next
}

// beginLocked runs the next barrier, and those requested while it runs.
func (bs *barriers) beginLocked(read func() (int64, error)) {
	b := bs.next
	bs.running, bs.next = b, nil
	go func() {
		b.revision, b.err = read()
		close(b.done)
		bs.mu.Lock()
		defer bs.mu.Unlock()
		bs.running = nil
		if bs.next != nil {
			bs.beginLocked(read)
		}
	}()
}

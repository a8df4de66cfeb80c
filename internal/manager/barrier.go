package manager

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// barrierTimeout bounds a barrier: a member without a majority has to say so.
const barrierTimeout = 3 * time.Second

// barriers are read indexes of the store. Whoever asks while one is under way waits for the next one, together with all who
// asked meanwhile: one that began earlier does not hold what was acknowledged since.
type barriers struct {
	mu            sync.Mutex
	running, next *barrier
}

type barrier struct {
	done     chan struct{}
	revision int64
	err      error
}

// catchUp returns when the view holds everything that was acknowledged before the call, by whatever member.
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

// current is catchUp for who only has to know what the leader would: while this member leads its view holds that.
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

// beginLocked runs the next barrier, and those that are asked for while it runs.
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

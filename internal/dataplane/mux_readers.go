package dataplane

import (
	"fmt"
	"slices"
	"sync"
)

// readers are the packets that may be with what changes gave up: it is used again after a grace period, for which no Apply
// or Change waits unless it has to (Mux.follow).
type readers struct {
	// waiting are the changes that are published and not released, in their order; Mux.mu guards it and what follows.
	waiting []*change
	// released is told when some were, and when the waiting failed.
	released *sync.Cond
	// works: releaseAll runs. failed is why it ended last.
	works   bool
	failed  error
	working sync.WaitGroup
}

// releaseLocked has the waiting changes released, sooner or later.
func (m *Mux) releaseLocked() {
	r := &m.readers
	if r.works {
		return
	}
	if r.released == nil {
		r.released = sync.NewCond(&m.mu)
	}
	r.works, r.failed = true, nil
	r.working.Go(m.releaseAll)
}

// releaseAll releases changes until none waits. What fails is tried again with the next change.
func (m *Mux) releaseAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := &m.readers
	for len(r.waiting) > 0 && r.failed == nil {
		n := len(r.waiting)
		m.mu.Unlock()
		err := m.grace.wait()
		m.mu.Lock()
		if err != nil {
			m.options.log().Error("what changes of the tables gave up is not free yet", "error", err)
			r.failed = err
			break
		}
		for _, c := range r.waiting[:n] {
			c.release()
		}
		r.waiting = slices.Delete(r.waiting, 0, n)
		r.released.Broadcast()
	}
	r.works = false
	r.released.Broadcast()
}

// awaitLocked returns when none of the changes waits. mu is given back meanwhile; applying is held.
func (m *Mux) awaitLocked(which func(*change) bool) error {
	r := &m.readers
	for slices.ContainsFunc(r.waiting, which) {
		m.releaseLocked()
		r.released.Wait()
		if r.failed != nil && !r.works {
			return fmt.Errorf("room that changes before gave up: %w", r.failed)
		}
	}
	return nil
}

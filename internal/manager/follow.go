package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// followRetry is how long a member waits before it retries a store that does not respond.
const followRetry = 250 * time.Millisecond

// errUnusable is the error of store content that this program or this data directory cannot work
// with. Waiting does not help.
type errUnusable struct{ error }

func (e errUnusable) Unwrap() error { return e.error }

// load brings the view to the store's newest revision and watches from there.
func (m *Manager) load(ctx context.Context) (store.Watcher, error) {
	asked := m.view.revision()
	snap, err := m.o.Store.List(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	if err := m.view.load(snap, asked); err != nil {
		return nil, errUnusable{fmt.Errorf("load state: %w", err)}
	}
	w, err := m.o.Store.Watch(m.ctx, root, snap.Revision+1)
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	return w, nil
}

// follow keeps the view at the store's newest revision until the member stops. It loads the store
// again if the store was unreachable or dropped revisions that this member missed.
func (m *Manager) follow(w store.Watcher) {
	for {
		err := m.pump(w)
		w.Close()
		for w = nil; w == nil; {
			if errors.As(err, new(errUnusable)) || errors.Is(err, store.ErrClosed) {
				m.stop(err)
			}
			if m.ctx.Err() != nil {
				return
			}
			m.o.Log.Warn("cannot follow the store, loads it again", "error", err)
			select {
			case <-m.o.Clock.After(followRetry):
			case <-m.ctx.Done():
				return
			}
			if w, err = m.load(m.ctx); err == nil {
				m.judge()
			}
		}
	}
}

// pump applies revisions to the view one by one until the watcher fails.
func (m *Manager) pump(w store.Watcher) error {
	for {
		batch, err := w.Next(m.ctx)
		if err != nil {
			return fmt.Errorf("follow the store: %w", err)
		}
		if err := m.view.fold(batch); err != nil {
			return errUnusable{fmt.Errorf("follow the store: %w", err)}
		}
		m.judge()
	}
}

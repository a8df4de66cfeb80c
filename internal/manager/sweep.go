package manager

import (
	"context"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// sweepEvery is the interval at which endpoints without an owner are checked. Their states are kept
// for plan.MemberQuarantine.
const sweepEvery = time.Hour

// sweepAll calls sweep every sweepEvery until ctx ends.
func (m *Manager) sweepAll(ctx context.Context) {
	for {
		if n, err := m.sweep(ctx); err != nil && ctx.Err() == nil {
			m.o.Log.Warn("cannot forget old endpoints", "error", err)
		} else if n > 0 {
			m.o.Log.Info("forgot old endpoints", "count", n)
		}
		select {
		case <-m.o.Clock.After(sweepEvery):
		case <-ctx.Done():
			return
		}
	}
}

// sweep deletes the states of endpoints that were removed and whose member ids are out of
// quarantine. It returns their number.
func (m *Manager) sweep(ctx context.Context) (int, error) {
	t, err := m.lead(ctx)
	if err != nil {
		return 0, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	w := newWrite(m.view.snapshot())
	now := m.o.Clock.Now()
	for _, key := range m.view.forgettable(now) {
		w.forget(key)
	}
	if len(w.txn.Ops) == 0 {
		return 0, nil
	}
	res, err := t.commit(ctx, w.fenced())
	if err != nil || !res.Succeeded {
		return 0, err
	}
	return len(w.txn.Ops), t.wait(ctx, res.Revision)
}

// forgettable returns the endpoints that have no owner and whose member ids are out of quarantine.
func (v *view) forgettable(now time.Time) []lb.EndpointKey {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var out []lb.EndpointKey
	for key, st := range v.state.Endpoints {
		if v.owners[key].svc == nil && st.Idle(now) {
			out = append(out, key)
		}
	}
	return out
}

// forget adds the deletion of an endpoint's state to the transaction.
func (w *write) forget(key lb.EndpointKey) {
	_, mod, _ := w.base.endpoint(key)
	w.txn.Compares = append(w.txn.Compares, store.Compare{Key: stateKey(key), ModRevision: mod})
	w.txn.Ops = append(w.txn.Ops, store.Delete(stateKey(key)))
}

package manager

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// keepPace is the minimum time between two rounds of writes. Changes in between become one
	// batch.
	keepPace = 100 * time.Millisecond
	// keepRetry is how long the keeper waits after a failed write.
	keepRetry = time.Second
	// keepOps and keepBytes bound one transaction of the keeper, so that users' writes do not wait
	// long.
	keepOps   = 2000
	keepBytes = 8 << 20
)

// keeper is the lifecycle controller. It writes the endpoint changes that time and health cause:
// growing weights, completed drains, and dead members that are removed from rings or added back.
type keeper struct {
	m *Manager
	// due maps endpoints to the time of their next check.
	due map[lb.EndpointKey]time.Time

	mu sync.Mutex
	// moved holds endpoints whose state or owner changed. Their due times are unknown.
	moved map[lb.EndpointKey]bool
	wake  chan struct{} // room for one
}

func newKeeper(m *Manager) *keeper {
	return &keeper{m: m, due: map[lb.EndpointKey]time.Time{}, moved: map[lb.EndpointKey]bool{}, wake: make(chan struct{}, 1)}
}

// note implements subscriber.
func (k *keeper) note(c change) {
	if len(c.endpoints) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range c.endpoints {
		k.moved[key] = true
	}
	notify.Send(k.wake)
}

// run handles due endpoints until ctx ends.
func (k *keeper) run(ctx context.Context) {
	k.m.view.subscribe(k)
	defer k.m.view.unsubscribe(k)
	k.note(change{endpoints: k.m.view.endpointKeys()})
	for {
		wrote, err := k.round(ctx)
		var pause <-chan time.Time
		switch {
		case err != nil && ctx.Err() == nil:
			k.m.o.Log.Warn("cannot take the steps of endpoints", "error", err)
			pause = k.m.o.Clock.After(keepRetry)
		case wrote:
			pause = k.m.o.Clock.After(keepPace)
		}
		if pause != nil {
			select {
			case <-pause:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case <-k.wake:
		case <-k.m.opinions.wake:
		case <-k.alarm():
		case <-ctx.Done():
			return
		}
	}
}

// alarm fires when the next endpoint is due; it is nil when none is.
func (k *keeper) alarm() <-chan time.Time {
	var next time.Time
	for _, at := range k.due {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		return nil
	}
	return k.m.o.Clock.After(next.Sub(k.m.o.Clock.Now()))
}

// round writes every due change and reports whether there was any. After an error the endpoints are
// due immediately.
func (k *keeper) round(ctx context.Context) (wrote bool, err error) {
	k.mu.Lock()
	moved := k.moved
	k.moved = map[lb.EndpointKey]bool{}
	k.mu.Unlock()
	now := k.m.o.Clock.Now()
	steps := k.m.opinions.take()
	for key := range moved {
		delete(k.due, key)
		if k.m.unsettled(key) {
			steps[key] = true
		}
	}
	for key, at := range k.due {
		if !at.After(now) {
			steps[key] = true
		}
	}
	keys := slices.SortedFunc(maps.Keys(steps), plan.CompareKeys)
	k.m.healthEvents.stir(moved)
	k.m.healthEvents.stir(steps)
	wrote, err = k.m.step(ctx, keys)
	if err != nil {
		for _, key := range keys {
			k.due[key] = now
		}
		return wrote, err
	}
	for key := range steps {
		if at := k.m.dueAt(key); at.IsZero() {
			delete(k.due, key)
		} else {
			k.due[key] = at
		}
	}
	return wrote, nil
}

// dueAt returns the time when the endpoint next changes by time alone. Zero: never.
func (m *Manager) dueAt(key lb.EndpointKey) time.Time {
	m.view.mu.RLock()
	st, own := m.view.state.Endpoints[key], m.view.owners[key]
	m.view.mu.RUnlock()
	if own.ep == nil {
		return time.Time{}
	}
	return plan.Due(&st, m.conditions().input(key, own.ep, 0))
}

// unsettled reports whether time may already have changed the endpoint.
func (m *Manager) unsettled(key lb.EndpointKey) bool {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	heard := m.opinions.heard(key)
	st := m.view.state.Endpoints[key]
	return len(st.History) > 0 || slices.ContainsFunc(st.Members, func(m plan.MemberState) bool {
		return m.Changing() || m.Fallen || !m.Revived.IsZero() || heard(m.ID).Health == plan.HeardDead
	})
}

// endpointKeys returns the endpoints that have a state.
func (v *view) endpointKeys() []lb.EndpointKey {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.Collect(maps.Keys(v.state.Endpoints))
}

// step writes the present states of endpoints that differ from the stored ones, in as few
// transactions as possible.
func (m *Manager) step(ctx context.Context, keys []lb.EndpointKey) (wrote bool, err error) {
	for len(keys) > 0 {
		rest, some, err := m.stepSome(ctx, keys)
		if wrote = wrote || some; err != nil {
			return wrote, err
		}
		keys = rest
	}
	return wrote, nil
}

// stepSome writes as many endpoints as fit into a transaction and returns the remaining ones. After
// a conflict it returns all of them.
func (m *Manager) stepSome(ctx context.Context, keys []lb.EndpointKey) (rest []lb.EndpointKey, wrote bool, err error) {
	t, err := m.lead(ctx)
	if err != nil {
		return keys, false, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	w, c := newWrite(m.view.snapshot()), m.conditions()
	done, bytes := 0, 0
	for _, key := range keys {
		if own := w.base.owner(key); own.ep != nil {
			if err := w.advance(key, own, c); err != nil {
				return keys, false, err
			}
		}
		done++
		if n := len(w.txn.Ops); n > 0 && w.txn.Ops[n-1].Key == stateKey(key) {
			bytes += len(w.txn.Ops[n-1].Value)
		}
		if len(w.txn.Ops) >= keepOps || bytes >= keepBytes {
			break
		}
	}
	if len(w.txn.Ops) > 0 {
		res, err := t.commit(ctx, w.fenced())
		if err != nil {
			return keys, false, err
		}
		if err := t.wait(ctx, res.Revision); err != nil || !res.Succeeded {
			return keys, false, err
		}
		m.o.Log.Debug("took steps", "endpoints", len(w.txn.Ops), "revision", res.Revision)
		m.stepped(w.steps, res.Revision)
	}
	for _, key := range keys[:done] {
		m.opinions.considered(key, c.now)
	}
	return keys[done:], len(w.txn.Ops) > 0, nil
}

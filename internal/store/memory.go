package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Memory is a Store without a disk, for tests and simulations.
type Memory struct {
	mu sync.Mutex
	// revision of the last change; a fresh store is at 1, as etcd is.
	revision  int64
	compacted int64
	keys      map[string]KV
	// log holds every batch after compacted, ordered.
	log    []Batch
	closed bool
	// leases holds channels that close when their lease is lost; leaseOf maps keys to leases.
	leases  map[LeaseID]chan struct{}
	leaseOf map[string]LeaseID
	granted LeaseID
	// wake is closed and replaced at every change.
	wake chan struct{}
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{revision: 1, keys: map[string]KV{}, leases: map[LeaseID]chan struct{}{}, leaseOf: map[string]LeaseID{}, wake: make(chan struct{})}
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) (KV, bool, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return KV{}, false, 0, err
	}
	kv, ok := m.keys[key]
	kv.Value = slices.Clone(kv.Value)
	return kv, ok, m.revision, nil
}

// List implements Store.
func (m *Memory) List(ctx context.Context, prefix string) (Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Revision: m.revision}
	for key, kv := range m.keys {
		if strings.HasPrefix(key, prefix) {
			kv.Value = slices.Clone(kv.Value)
			s.KVs = append(s.KVs, kv)
		}
	}
	slices.SortFunc(s.KVs, func(a, b KV) int { return strings.Compare(a.Key, b.Key) })
	return s, nil
}

// Txn implements Store.
func (m *Memory) Txn(ctx context.Context, t Txn) (TxnResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return TxnResult{}, err
	}
	if err := t.Check(); err != nil {
		return TxnResult{}, err
	}
	for _, c := range t.Compares {
		if m.keys[c.Key].ModRevision != c.ModRevision {
			return TxnResult{Revision: m.revision}, nil
		}
	}
	for _, op := range t.Ops {
		if op.Lease != 0 && m.leases[op.Lease] == nil {
			return TxnResult{}, ErrLeaseLost
		}
	}
	return TxnResult{Succeeded: true, Revision: m.commitLocked(t.Ops)}, nil
}

// commitLocked applies the operations in one revision and returns the store's revision.
func (m *Memory) commitLocked(ops []Op) int64 {
	batch := Batch{Revision: m.revision + 1}
	for _, op := range ops {
		if ev, changed := m.applyLocked(op, batch.Revision); changed {
			batch.Events = append(batch.Events, ev)
		}
	}
	if len(batch.Events) > 0 {
		m.revision = batch.Revision
		m.log = append(m.log, batch)
		m.wakeLocked()
	}
	return m.revision
}

func (m *Memory) applyLocked(op Op, revision int64) (Event, bool) {
	old, present := m.keys[op.Key]
	delete(m.leaseOf, op.Key)
	if op.Delete {
		delete(m.keys, op.Key)
		return Event{KV: KV{Key: op.Key, ModRevision: revision}, Deleted: true}, present
	}
	kv := KV{Key: op.Key, Value: slices.Clone(op.Value), ModRevision: revision, CreateRevision: revision}
	if present {
		kv.CreateRevision = old.CreateRevision
	}
	m.keys[op.Key] = kv
	if op.Lease != 0 {
		m.leaseOf[op.Key] = op.Lease
	}
	return Event{KV: kv}, true
}

// Check returns the fault of the transaction itself.
func (t Txn) Check() error {
	seen := make(map[string]bool, len(t.Ops))
	for _, op := range t.Ops {
		if op.Key == "" {
			return fmt.Errorf("transaction: key %q: must not be empty", op.Key)
		}
		if seen[op.Key] {
			return fmt.Errorf("transaction: key %q: must appear in one operation only", op.Key)
		}
		seen[op.Key] = true
	}
	return nil
}

// Barrier implements Store.
func (m *Memory) Barrier(ctx context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision, m.usableLocked(ctx)
}

// Grant implements Store. A lease in memory lasts until it is revoked or ended by Lapse, because
// there is no clock.
func (m *Memory) Grant(ctx context.Context, _ time.Duration) (LeaseID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return 0, err
	}
	m.granted++
	m.leases[m.granted] = make(chan struct{})
	return m.granted, nil
}

// Renew implements Store.
func (m *Memory) Renew(ctx context.Context, id LeaseID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return err
	}
	if m.leases[id] == nil {
		return ErrLeaseLost
	}
	return nil
}

// LeaseOf returns the lease of the key; 0 is none.
func (m *Memory) LeaseOf(key string) LeaseID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaseOf[key]
}

// KeepAlive implements Store.
func (m *Memory) KeepAlive(ctx context.Context, id LeaseID) error {
	for {
		m.mu.Lock()
		lost, wake, err := m.leases[id], m.wake, m.usableLocked(ctx)
		m.mu.Unlock()
		if err != nil {
			return err
		}
		if lost == nil {
			return ErrLeaseLost
		}
		select {
		case <-lost:
			return ErrLeaseLost
		case <-wake: // m.leases may have changed, or the store closed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Revoke implements Store.
func (m *Memory) Revoke(ctx context.Context, id LeaseID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return err
	}
	lost := m.leases[id]
	if lost == nil {
		return nil
	}
	delete(m.leases, id)
	var ops []Op
	for key, of := range m.leaseOf {
		if of == id {
			ops = append(ops, Delete(key))
		}
	}
	slices.SortFunc(ops, func(a, b Op) int { return strings.Compare(a.Key, b.Key) })
	m.commitLocked(ops)
	close(lost)
	return nil
}

// Lapse ends a lease as its expiry would.
func (m *Memory) Lapse(id LeaseID) error { return m.Revoke(context.Background(), id) }

// Compact implements Store.
func (m *Memory) Compact(ctx context.Context, revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return err
	}
	if revision > m.revision {
		return fmt.Errorf("compact: revision %d: must be at most %d", revision, m.revision)
	}
	if revision <= m.compacted {
		return nil
	}
	m.compacted = revision
	m.log = slices.DeleteFunc(m.log, func(b Batch) bool { return b.Revision < revision })
	m.wakeLocked()
	return nil
}

// Close implements Store.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		m.wakeLocked()
	}
	return nil
}

func (m *Memory) usableLocked(ctx context.Context) error {
	if m.closed {
		return ErrClosed
	}
	return ctx.Err()
}

func (m *Memory) wakeLocked() {
	close(m.wake)
	m.wake = make(chan struct{})
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, prefix string, from int64) (Watcher, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(ctx); err != nil {
		return nil, err
	}
	return &memoryWatcher{m: m, prefix: prefix, next: from, done: make(chan struct{})}, nil
}

type memoryWatcher struct {
	m      *Memory
	prefix string
	next   int64
	once   sync.Once
	done   chan struct{}
}

// Next implements Watcher.
func (w *memoryWatcher) Next(ctx context.Context) (Batch, error) {
	for {
		batch, wake, err := w.poll()
		if err != nil || batch.Revision != 0 {
			return batch, err
		}
		select {
		case <-wake:
		case <-w.done:
			return Batch{}, ErrClosed
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		}
	}
}

// poll returns the next batch, or a channel that closes when polling again is useful.
func (w *memoryWatcher) poll() (Batch, <-chan struct{}, error) {
	m := w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return Batch{}, nil, ErrClosed
	}
	if w.next < m.compacted {
		return Batch{}, nil, ErrCompacted
	}
	i, _ := slices.BinarySearchFunc(m.log, w.next, func(b Batch, rev int64) int { return int(b.Revision - rev) })
	for ; i < len(m.log); i++ {
		w.next = m.log[i].Revision + 1
		if b := m.log[i].under(w.prefix); len(b.Events) > 0 {
			return b, nil, nil
		}
	}
	w.next = max(w.next, m.revision+1)
	return Batch{}, m.wake, nil
}

// under returns the events of keys with the prefix.
func (b Batch) under(prefix string) Batch {
	out := Batch{Revision: b.Revision}
	for _, ev := range b.Events {
		if strings.HasPrefix(ev.KV.Key, prefix) {
			ev.KV.Value = slices.Clone(ev.KV.Value)
			out.Events = append(out.Events, ev)
		}
	}
	return out
}

// Close implements Watcher.
func (w *memoryWatcher) Close() { w.once.Do(func() { close(w.done) }) }

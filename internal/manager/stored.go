package manager

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/store"
)

// A transaction is stored when a majority of the store's members has it on disk. The nodes of a
// follower whose disk is slower, or whose store receives the commit late, need not wait for it,
// because the leader sends stored changes to its followers.

const (
	// maxStored is the maximum number of changes that wait for a follower that does not read, and
	// maxStoredBytes the maximum size of one: 16 MiB in all. The follower receives changes beyond
	// these limits from its own store.
	maxStored      = 64
	maxStoredBytes = 256 << 10
)

// tellStored sends to all followers the changes that this member stored at a revision.
func (fs *followers) tellStored(ops []store.Op, revision int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.byName) == 0 {
		return
	}
	change, size := &apiv1.StoredChange{Revision: revision, Ops: make([]*apiv1.StoredOp, len(ops))}, 0
	for i, op := range ops {
		change.Ops[i] = &apiv1.StoredOp{Key: op.Key, Value: op.Value, Delete: op.Delete}
		size += len(op.Key) + len(op.Value)
	}
	if size > maxStoredBytes {
		return
	}
	for _, f := range fs.byName {
		f.tellStored(change)
	}
}

// tellStored queues a change for the follower. If the queue is full, it drops all pending changes.
// Later ones are useless to the follower until its store has caught up.
func (f *follower) tellStored(c *apiv1.StoredChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stored = append(f.stored, c); len(f.stored) > maxStored {
		f.stored = nil
	}
	notify.Send(f.wake)
}

// hearStored applies a change that the leader has stored.
func (m *Manager) hearStored(c *apiv1.StoredChange) {
	ops := make([]store.Op, len(c.GetOps()))
	for i, op := range c.GetOps() {
		ops[i] = store.Op{Key: op.GetKey(), Value: op.GetValue(), Delete: op.GetDelete()}
	}
	if err := m.view.foldStored(ops, c.GetRevision()); err != nil {
		m.o.Log.Error("cannot work with what the leader stored", "revision", c.GetRevision(), "error", err)
	}
}

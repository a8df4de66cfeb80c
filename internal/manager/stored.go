package manager

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/store"
)

// A transaction is stored when a majority of the store's members has it on disk. The nodes of a follower whose disk is slower, or
// which is told of the commit late, need not wait for it: the leader tells its followers what it stored.

const (
	// maxStored is how many changes wait for a follower that does not read, maxStoredBytes how large one of them may be: 16 MiB
	// in all. What is beyond the follower has when its store does.
	maxStored      = 64
	maxStoredBytes = 256 << 10
)

// tellStored lets all followers hear of what this member has stored at a revision.
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

// tellStored queues a change. One that the follower lacks makes all that come after it useless, until its store has caught up.
func (f *follower) tellStored(c *apiv1.StoredChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stored = append(f.stored, c); len(f.stored) > maxStored {
		f.stored = nil
	}
	notify.Send(f.wake)
}

// hearStored takes in what the leader has stored.
func (m *Manager) hearStored(c *apiv1.StoredChange) {
	ops := make([]store.Op, len(c.GetOps()))
	for i, op := range c.GetOps() {
		ops[i] = store.Op{Key: op.GetKey(), Value: op.GetValue(), Delete: op.GetDelete()}
	}
	if err := m.view.foldStored(ops, c.GetRevision()); err != nil {
		m.o.Log.Error("cannot work with what the leader stored", "revision", c.GetRevision(), "error", err)
	}
}

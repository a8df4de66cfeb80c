// Package store is the revisioned key/value store of the manager's state, with an implementation in
// memory.
package store

import (
	"context"
	"errors"
	"time"
)

// Errors that callers may check.
var (
	// ErrCompacted: the requested revisions were removed; list again and watch from there.
	ErrCompacted = errors.New("revision was compacted")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrLeaseLost: the lease expired or was revoked; its keys are deleted.
	ErrLeaseLost = errors.New("lease is lost")
	// ErrUnanswered: the store has no leader or did not answer in time. The call can be repeated;
	// whether a write was done is unknown.
	ErrUnanswered = errors.New("store does not answer")
)

// LeaseID identifies a lease; 0 is none.
type LeaseID int64

// KV is a key at some revision.
type KV struct {
	Key   string
	Value []byte
	// ModRevision is the revision of the last put.
	ModRevision int64
	// CreateRevision is the revision of the first put since the key was absent.
	CreateRevision int64
}

// Snapshot is every key under a prefix at one revision, ordered by key.
type Snapshot struct {
	Revision int64
	KVs      []KV
}

// Compare is true if the key's last change has the revision. 0 means that the key is absent.
type Compare struct {
	Key         string
	ModRevision int64
}

// Op is a put, or a delete when Delete is set.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
	// Lease deletes the key when it is lost; 0: the key stays.
	Lease LeaseID
}

// Put returns a put.
func Put(key string, value []byte) Op { return Op{Key: key, Value: value} }

// Delete returns a delete. Deleting an absent key is neither an error nor a change.
func Delete(key string) Op { return Op{Key: key, Delete: true} }

// Txn applies all Ops in one revision if every Compare is true, else none. A key may be in one Op
// only.
type Txn struct {
	Compares []Compare
	Ops      []Op
}

// TxnResult reports whether the compares were true, and the store's revision afterwards.
type TxnResult struct {
	Succeeded bool
	Revision  int64
}

// Event is a change of one key.
type Event struct {
	KV      KV // for a delete only Key and ModRevision are set
	Deleted bool
}

// Batch holds all changes of one revision under the watched prefix. Without events it reports that
// nothing changed there from the last batch up to the revision; a store may send such batches.
type Batch struct {
	Revision int64
	Events   []Event
}

// Watcher delivers batches in the order of revisions, without gaps.
type Watcher interface {
	// Next waits for the next batch. ErrCompacted: the watcher fell behind a compaction and is
	// unusable.
	Next(ctx context.Context) (Batch, error)
	// Close releases the watcher.
	Close()
}

// Store is a revisioned key/value store. An acknowledged Txn survives any crash of the process.
type Store interface {
	// Get reads one key; ok is false if it is absent. The revision is the store's.
	Get(ctx context.Context, key string) (kv KV, ok bool, revision int64, err error)
	// List reads every key that starts with prefix.
	List(ctx context.Context, prefix string) (Snapshot, error)
	// Txn commits atomically.
	Txn(ctx context.Context, t Txn) (TxnResult, error)
	// Watch delivers changes with a revision of at least from; from is at least 1.
	Watch(ctx context.Context, prefix string, from int64) (Watcher, error)
	// Compact removes the history before the revision; current keys stay.
	Compact(ctx context.Context, revision int64) error
	// Barrier returns a revision that includes every Txn acknowledged before the call, on any
	// member of the store. Every watcher of this store gets a batch of that revision or a later
	// one, without a further change.
	Barrier(ctx context.Context) (revision int64, err error)
	// Grant returns a lease that lasts at least ttl (at least a second) from now or from its last
	// renewal.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, error)
	// Renew renews the lease once: it lasts at least its ttl from the call on. ErrLeaseLost: it is
	// lost.
	Renew(ctx context.Context, id LeaseID) error
	// KeepAlive renews the lease repeatedly, in time. It returns ErrLeaseLost once the loss is
	// certain, or when the process stood still for longer than the lease lasts. It returns the
	// store's error when the state of the lease is unknown for that long, and the error of ctx when
	// that ends.
	KeepAlive(ctx context.Context, id LeaseID) error
	// Revoke ends the lease: its keys are deleted in one revision. Revoking a lost lease is not an
	// error.
	Revoke(ctx context.Context, id LeaseID) error
	// Close releases everything; later calls return ErrClosed.
	Close() error
}

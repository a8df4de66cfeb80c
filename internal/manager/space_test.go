package manager_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/internal/store"
)

// fullStore refuses writes while it is full, as etcd does.
type fullStore struct {
	store.Store
	full atomic.Bool
}

// Txn implements store.Store.
func (s *fullStore) Txn(ctx context.Context, txn store.Txn) (store.TxnResult, error) {
	if s.full.Load() {
		return store.TxnResult{}, store.ErrNoSpace
	}
	return s.Store.Txn(ctx, txn)
}

// TestNoSpace: a write for which the store has no space is refused with a definite error, and the
// member stays leader.
func TestNoSpace(t *testing.T) {
	s := &fullStore{Store: store.NewMemory()}
	r := newRig(t, s)
	r.apply(network())
	s.full.Store(true)
	if _, err := r.tryApply(hostNode(1)); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "no space") || strings.Contains(err.Error(), "unknown") {
		t.Errorf("without space: %v", err)
	}
	s.full.Store(false)
	r.apply(hostNode(1))
}

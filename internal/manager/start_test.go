package manager_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// electing is a store in which the first and the third call of one kind fail, as those of etcd do
// while its members elect a leader.
type electing struct {
	store.Store
	kind  string
	calls atomic.Int32
}

// fault counts a call of the kind and returns its error.
func (s *electing) fault(kind string) error {
	if kind != s.kind {
		return nil
	}
	if n := s.calls.Add(1); n == 1 || n == 3 {
		return fmt.Errorf("store: %s: %w", kind, store.ErrUnanswered)
	}
	return nil
}

// Get implements store.Store.
func (s *electing) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	if err := s.fault("get"); err != nil {
		return store.KV{}, false, 0, err
	}
	return s.Store.Get(ctx, key)
}

// List implements store.Store.
func (s *electing) List(ctx context.Context, prefix string) (store.Snapshot, error) {
	if err := s.fault("list"); err != nil {
		return store.Snapshot{}, err
	}
	return s.Store.List(ctx, prefix)
}

// Grant implements store.Store.
func (s *electing) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	if err := s.fault("grant"); err != nil {
		return 0, err
	}
	return s.Store.Grant(ctx, ttl)
}

// Txn implements store.Store.
func (s *electing) Txn(ctx context.Context, txn store.Txn) (store.TxnResult, error) {
	if err := s.fault("transaction"); err != nil {
		return store.TxnResult{}, err
	}
	return s.Store.Txn(ctx, txn)
}

// TestStartOutlastsElections: a manager that starts while the members of its store elect a leader
// waits for them, in each of its steps, and works.
func TestStartOutlastsElections(t *testing.T) {
	for _, kind := range []string{"get", "list", "grant", "transaction"} {
		t.Run(kind, func(t *testing.T) {
			s := &electing{Store: store.NewMemory(), kind: kind}
			newRig(t, s).apply(network())
			if s.calls.Load() < 2 {
				t.Errorf("%d calls: must be one that failed and another one", s.calls.Load())
			}
		})
	}
}

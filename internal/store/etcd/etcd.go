// Package etcd implements the store with etcd: in an embedded member, alone or with others, or in
// an external cluster. It is the only importer of etcd.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shuntlb/shunt/internal/store"
)

// Limits of the members, embedded or external.
const (
	// maxTxnOps: one Apply writes each object and each endpoint state as a separate key: 20,000
	// services with two endpoints on two VIPs are 100,000.
	maxTxnOps = 1 << 17
	// maxRequestBytes: such an Apply at 300 bytes a key is 30 MB.
	maxRequestBytes = 64 << 20
)

// Store is a client of etcd.
type Store struct {
	client *clientv3.Client
	// prefix is the prefix of every key in an external etcd; empty in an embedded one.
	prefix string
	log    *slog.Logger
	now    func() time.Time
	// leases holds the duration of leases granted here: time.Duration by store.LeaseID.
	leases sync.Map

	// life ends when the store is closed or fails; every later call returns its cause.
	life context.Context
	end  context.CancelCauseFunc
	// tending are goroutines that end with life.
	tending sync.WaitGroup
	// progress is for an external etcd, which others write to, too; else nil.
	progress *progress
}

func newStore(client *clientv3.Client, log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	life, end := context.WithCancelCause(context.Background())
	return &Store{client: client, log: log, now: time.Now, life: life, end: end}
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.end(store.ErrClosed)
	s.tending.Wait()
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// ended returns the reason why the store has ended, always a store.ErrClosed; nil while it is
// usable.
func (s *Store) ended() error {
	cause := context.Cause(s.life)
	if cause == nil || errors.Is(cause, store.ErrClosed) {
		return cause
	}
	return fmt.Errorf("%w: %w", store.ErrClosed, cause)
}

// bound returns a context that also ends with the store.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := s.ended(); err != nil {
		return ctx, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// fault converts an error of etcd to one of the store.
func (s *Store) fault(op string, err error) error {
	if err == nil {
		return nil
	}
	if cause := s.ended(); cause != nil {
		return cause
	}
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrCompacted
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return store.ErrLeaseLost
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("store: %s: %w until a member has room on its disk again", op, store.ErrNoSpace)
	case tooLarge(err):
		return fmt.Errorf("store: %s: %w (etcd needs %s)", op, err, neededFlags)
	}
	for _, passing := range unanswered {
		if errors.Is(err, passing) {
			err = unansweredError{err}
		}
	}
	return fmt.Errorf("store: %s: %w", op, err)
}

// unanswered lists etcd's errors while the cluster has no leader.
var unanswered = []error{
	rpctypes.ErrNoLeader, rpctypes.ErrLeaderChanged, rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost,
}

// unansweredError wraps one of them, with etcd's message; it is store.ErrUnanswered.
type unansweredError struct{ error }

// Is reports whether target is store.ErrUnanswered.
func (unansweredError) Is(target error) bool { return target == store.ErrUnanswered }

// Unwrap returns etcd's error.
func (e unansweredError) Unwrap() error { return e.error }

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	ctx, done, err := s.bound(ctx)
	if err != nil {
		return store.KV{}, false, 0, err
	}
	defer done()
	res, err := s.read(ctx, s.prefix+key)
	if err != nil {
		return store.KV{}, false, 0, s.fault("get "+key, err)
	}
	if len(res.Kvs) == 0 {
		return store.KV{}, false, res.Header.Revision, nil
	}
	return s.fromKV(res.Kvs[0]), true, res.Header.Revision, nil
}

// read retries when a new leader was elected meanwhile, because the old leader's answer is not
// certain.
func (s *Store) read(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	for {
		res, err := s.client.Get(ctx, key, opts...)
		if !errors.Is(err, rpctypes.ErrLeaderChanged) || ctx.Err() != nil {
			return res, err
		}
	}
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string) (store.Snapshot, error) {
	ctx, done, err := s.bound(ctx)
	if err != nil {
		return store.Snapshot{}, err
	}
	defer done()
	res, err := s.read(ctx, s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
	if err != nil {
		return store.Snapshot{}, s.fault("list "+prefix, err)
	}
	out := store.Snapshot{Revision: res.Header.Revision, KVs: make([]store.KV, 0, len(res.Kvs))}
	for _, kv := range res.Kvs {
		out.KVs = append(out.KVs, s.fromKV(kv))
	}
	return out, nil
}

func (s *Store) fromKV(kv *mvccpb.KeyValue) store.KV {
	return store.KV{
		Key: strings.TrimPrefix(string(kv.Key), s.prefix), Value: kv.Value,
		ModRevision: kv.ModRevision, CreateRevision: kv.CreateRevision,
	}
}

// Txn implements store.Store.
func (s *Store) Txn(ctx context.Context, t store.Txn) (store.TxnResult, error) {
	if err := t.Check(); err != nil {
		return store.TxnResult{}, err
	}
	cmps := make([]clientv3.Cmp, 0, len(t.Compares))
	for _, c := range t.Compares {
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(s.prefix+c.Key), "=", c.ModRevision))
	}
	ops := make([]clientv3.Op, 0, len(t.Ops))
	for _, op := range t.Ops {
		if op.Delete {
			ops = append(ops, clientv3.OpDelete(s.prefix+op.Key))
		} else {
			ops = append(ops, clientv3.OpPut(s.prefix+op.Key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease))))
		}
	}
	ctx, done, err := s.bound(ctx)
	if err != nil {
		return store.TxnResult{}, err
	}
	defer done()
	res, err := s.client.Txn(ctx).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return store.TxnResult{}, s.fault("transaction", err)
	}
	return store.TxnResult{Succeeded: res.Succeeded, Revision: res.Header.Revision}, nil
}

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	ctx, done, err := s.bound(ctx)
	if err != nil {
		return err
	}
	defer done()
	_, err = s.client.Compact(ctx, revision)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return s.fault("compact", err)
}

// Barrier implements store.Store, by a linearizable read of a key that need not exist.
func (s *Store) Barrier(ctx context.Context) (int64, error) {
	ctx, done, err := s.bound(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	res, err := s.read(ctx, s.prefix+"/", clientv3.WithCountOnly())
	if err != nil {
		return 0, s.fault("barrier", err)
	}
	if s.progress != nil {
		s.progress.want(res.Header.Revision)
	}
	return res.Header.Revision, nil
}

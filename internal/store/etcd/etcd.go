// Package etcd keeps the store in an embedded etcd member. It is the only importer of the etcd server.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/shuntlb/shunt/internal/store"
)

// Limits of the embedded member.
const (
	// maxTxnOps: one Apply writes each object and each endpoint state as a key of its own: 20,000 services with two
	// endpoints on two VIPs are 100,000.
	maxTxnOps = 1 << 17
	// maxRequestBytes: such an Apply at 300 bytes a key is 30 MB.
	maxRequestBytes = 64 << 20
	// quotaBytes is etcd's recommended maximum.
	quotaBytes = 8 << 30
	// keepRevisions is the history that auto compaction keeps, so that a watcher which fell behind can catch up.
	keepRevisions = "10000"
	// startTimeout bounds the replay of the write-ahead log.
	startTimeout = 60 * time.Second
)

// Options choose the data directory.
type Options struct {
	Dir string
	// UnsafeNoFsync gives up durability; for tests only.
	UnsafeNoFsync bool
}

// Store is an embedded etcd with a single member. It listens nowhere: its client calls the server in the process.
type Store struct {
	etcd   *embed.Etcd
	client *clientv3.Client
	once   sync.Once
	closed chan struct{}
}

// Open starts the member and waits until it serves. The directory must not be used by another process: etcd's own
// lock would wait for ever, so callers take a lock first.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	cfg, err := config(o)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", o.Dir, err)
	}
	e, err := start(cfg)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", o.Dir, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		e.Close()
		return nil, fmt.Errorf("open store %s: %w", o.Dir, err)
	case <-e.Server.StopNotify():
		return nil, fmt.Errorf("open store %s: member stopped while it started", o.Dir)
	case <-ctx.Done():
		e.Close()
		return nil, fmt.Errorf("open store %s: member is not ready: %w", o.Dir, ctx.Err())
	}
	return &Store{etcd: e, client: v3client.New(e.Server), closed: make(chan struct{})}, nil
}

// start starts etcd, which panics or waits for ever when its files are damaged.
func start(cfg *embed.Config) (e *embed.Etcd, err error) {
	wal, snap := filepath.Join(cfg.Dir, "member", "wal"), filepath.Join(cfg.Dir, "member", "snap", "db")
	logs, err := filepath.Glob(filepath.Join(wal, "*.wal"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(snap); err == nil && len(logs) == 0 {
		return nil, fmt.Errorf("%s: holds no log although there is a database: restore a backup", wal)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("its files are damaged, restore a backup: %v", r)
		}
	}()
	return embed.StartEtcd(cfg)
}

func config(o Options) (*embed.Config, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.Name = "shunt"
	// The advertised addresses only name the member in its cluster of one; nothing listens there.
	name := url.URL{Scheme: "http", Host: "localhost:2380"}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = []url.URL{}, []url.URL{}
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = []url.URL{name}, []url.URL{name}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.AutoCompactionMode = embed.CompactorModeRevision
	cfg.AutoCompactionRetention = keepRevisions
	cfg.MaxTxnOps = maxTxnOps
	cfg.MaxRequestBytes = maxRequestBytes
	cfg.QuotaBackendBytes = quotaBytes
	cfg.UnsafeNoFsync = o.UnsafeNoFsync
	// A member alone needs no patience with others: it elects itself after one election timeout.
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.WatchProgressNotifyInterval = time.Minute
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(quietLogger(os.Stderr))
	return cfg, nil
}

// Close implements store.Store. It returns when everything is on disk.
func (s *Store) Close() error {
	s.once.Do(func() {
		close(s.closed)
		s.client.Close()
		s.etcd.Close()
	})
	return nil
}

// fault turns an error of etcd into one of the store.
func (s *Store) fault(op string, err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-s.closed:
		return store.ErrClosed
	default:
	}
	if errors.Is(err, rpctypes.ErrCompacted) {
		return store.ErrCompacted
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return store.ErrLeaseLost
	}
	return fmt.Errorf("store: %s: %w", op, err)
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	res, err := s.client.Get(ctx, key)
	if err != nil {
		return store.KV{}, false, 0, s.fault("get "+key, err)
	}
	if len(res.Kvs) == 0 {
		return store.KV{}, false, res.Header.Revision, nil
	}
	return fromKV(res.Kvs[0]), true, res.Header.Revision, nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string) (store.Snapshot, error) {
	res, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
	if err != nil {
		return store.Snapshot{}, s.fault("list "+prefix, err)
	}
	out := store.Snapshot{Revision: res.Header.Revision, KVs: make([]store.KV, 0, len(res.Kvs))}
	for _, kv := range res.Kvs {
		out.KVs = append(out.KVs, fromKV(kv))
	}
	return out, nil
}

func fromKV(kv *mvccpb.KeyValue) store.KV {
	return store.KV{
		Key: string(kv.Key), Value: kv.Value,
		ModRevision: kv.ModRevision, CreateRevision: kv.CreateRevision,
	}
}

// Txn implements store.Store.
func (s *Store) Txn(ctx context.Context, t store.Txn) (store.TxnResult, error) {
	select {
	case <-s.closed:
		return store.TxnResult{}, store.ErrClosed
	default:
	}
	if err := t.Check(); err != nil {
		return store.TxnResult{}, err
	}
	cmps := make([]clientv3.Cmp, 0, len(t.Compares))
	for _, c := range t.Compares {
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.ModRevision))
	}
	ops := make([]clientv3.Op, 0, len(t.Ops))
	for _, op := range t.Ops {
		if op.Delete {
			ops = append(ops, clientv3.OpDelete(op.Key))
		} else {
			ops = append(ops, clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease))))
		}
	}
	res, err := s.client.Txn(ctx).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return store.TxnResult{}, s.fault("transaction", err)
	}
	return store.TxnResult{Succeeded: res.Succeeded, Revision: res.Header.Revision}, nil
}

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	_, err := s.client.Compact(ctx, revision)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return s.fault("compact", err)
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	select {
	case <-s.closed:
		return nil, store.ErrClosed
	default:
	}
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(context.WithoutCancel(ctx)))
	ch := s.client.Watch(wctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from))
	return &watcher{s: s, ch: ch, cancel: cancel}, nil
}

// watcher splits etcd's responses, which may hold several revisions, into one batch each. etcd without fragmenting
// never splits a revision over two responses.
type watcher struct {
	s       *Store
	ch      clientv3.WatchChan
	cancel  context.CancelFunc
	pending []store.Batch
}

// Next implements store.Watcher.
func (w *watcher) Next(ctx context.Context) (store.Batch, error) {
	for len(w.pending) == 0 {
		select {
		case res, ok := <-w.ch:
			if !ok {
				return store.Batch{}, store.ErrClosed
			}
			if err := res.Err(); err != nil {
				return store.Batch{}, w.s.fault("watch", err)
			}
			w.pending = batches(res.Events)
		case <-w.s.closed:
			return store.Batch{}, store.ErrClosed
		case <-ctx.Done():
			return store.Batch{}, ctx.Err()
		}
	}
	b := w.pending[0]
	w.pending = w.pending[1:]
	return b, nil
}

func batches(events []*clientv3.Event) []store.Batch {
	var out []store.Batch
	for _, ev := range events {
		rev := ev.Kv.ModRevision
		if len(out) == 0 || out[len(out)-1].Revision != rev {
			out = append(out, store.Batch{Revision: rev})
		}
		last := &out[len(out)-1]
		last.Events = append(last.Events, event(ev))
	}
	return out
}

func event(ev *clientv3.Event) store.Event {
	if ev.Type == mvccpb.Event_DELETE {
		return store.Event{KV: store.KV{Key: string(ev.Kv.Key), ModRevision: ev.Kv.ModRevision}, Deleted: true}
	}
	return store.Event{KV: fromKV(ev.Kv)}
}

// Close implements store.Watcher.
func (w *watcher) Close() { w.cancel() }

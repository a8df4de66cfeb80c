// Package manager is the part that people and nodes talk to: it validates and stores objects, computes every node's
// plan and streams it.
//
// Lock order: Manager.writing, view.mu, session.mu or keeper.mu; Manager.reports.mu and opinions.mu are taken last.
package manager

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/store"
)

// ErrFenced: another manager has taken the leadership; this one must not go on.
var ErrFenced = errors.New("another manager has taken the leadership")

// Options say how a manager runs. Dir, Store and Name are required.
type Options struct {
	Dir   *DataDir
	Store store.Store
	// Name of this manager, in logs and in the leader key.
	Name string
	// Listen and Advertise are addresses (host:port) of the API; only to know which names certificates need.
	Listen, Advertise string
	// Version and Commit of the program.
	Version, Commit string
	Clock           clock.Clock
	Log             *slog.Logger
	// Interceptors see every call of the API.
	Interceptors []connect.Interceptor
	// RingSize chooses ring sizes; nil is ring.SizeCode.
	RingSize plan.SizeCode
	// DownAfter is how long every mux must call a member dead until rings are made without it; 0 is DefaultDownAfter,
	// less than that never.
	DownAfter time.Duration
	// TraceTimeout bounds a node's answer; 0 is DefaultTraceTimeout.
	TraceTimeout time.Duration
	// keepNothing leaves the steps of endpoints to a test.
	keepNothing bool
}

// DefaultDownAfter is short beside how long the fallback chain's 1.5 % on the busiest backend matters, and long beside
// a restart of a server: a ring that changes moves flows.
const DefaultDownAfter = 30 * time.Second

// DefaultTraceTimeout is how long Trace waits for a node.
const DefaultTraceTimeout = 2 * time.Second

// Manager is one manager in its leadership term.
type Manager struct {
	o       Options
	secrets *secrets
	view    *view
	epoch   int64
	// leaderMod is the revision of the leader key in this term; every write compares it.
	leaderMod int64
	// FirstStart tells whether this start made the administrator's configuration.
	FirstStart bool

	// writing makes writes of this manager queue up instead of conflicting.
	writing sync.Mutex
	// issued is the latest time in a certificate of this term; writing guards it.
	issued time.Time

	reports  *reports
	opinions *opinions
	sessions *sessions
	server   *serverCert

	cancel context.CancelCauseFunc
	done   chan struct{}
	ctx    context.Context
}

// Open begins a leadership term: it loads the state and follows it until Close.
func Open(ctx context.Context, o Options) (*Manager, error) {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.RingSize == nil {
		o.RingSize = ring.SizeCode
	}
	if o.DownAfter == 0 {
		o.DownAfter = DefaultDownAfter
	}
	if o.TraceTimeout == 0 {
		o.TraceTimeout = DefaultTraceTimeout
	}
	now := o.Clock.Now()
	_, used, _, err := o.Store.Get(ctx, keySchema)
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	secrets, err := loadSecrets(o.Dir, o.Name, used, now)
	if err != nil {
		return nil, err
	}
	m := &Manager{o: o, secrets: secrets, view: newView(secrets), reports: newReports(), opinions: newOpinions(), sessions: newSessions(), done: make(chan struct{})}
	if secrets.old && !used {
		o.Log.Warn("the store is empty, but the CA is not new: nodes that obeyed a later epoch keep their plans until this one is as late")
	}
	if err := m.lead(ctx); err != nil {
		return nil, err
	}
	if m.server, err = newServerCert(secrets.ca, o, now); err != nil {
		return nil, err
	}
	if err := m.writeAdminConfig(now); err != nil {
		return nil, err
	}
	if err := m.follow(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// lead writes the next epoch. Whoever led before fails its next write.
func (m *Manager) lead(ctx context.Context) error {
	if err := m.checkSchema(ctx); err != nil {
		return fmt.Errorf("begin epoch: %w", err)
	}
	kv, _, _, err := m.o.Store.Get(ctx, keyLeader)
	if err != nil {
		return fmt.Errorf("begin epoch: %w", err)
	}
	var old apiv1.StoredLeader
	if err := proto.Unmarshal(kv.Value, &old); err != nil {
		return fmt.Errorf("begin epoch: read leader key: %w", err)
	}
	m.epoch = old.GetEpoch() + 1
	value, err := proto.Marshal(&apiv1.StoredLeader{Epoch: m.epoch, Name: m.o.Name, Since: timestamppb.New(m.o.Clock.Now())})
	if err != nil {
		return err
	}
	res, err := m.o.Store.Txn(ctx, store.Txn{
		Compares: []store.Compare{{Key: keyLeader, ModRevision: kv.ModRevision}},
		Ops:      []store.Op{store.Put(keyLeader, value), store.Put(keySchema, []byte(schemaVersion))},
	})
	if err != nil {
		return fmt.Errorf("begin epoch %d: %w", m.epoch, err)
	}
	if !res.Succeeded {
		return fmt.Errorf("begin epoch %d: %w", m.epoch, ErrFenced)
	}
	m.leaderMod = res.Revision
	return m.makeRingKey(ctx)
}

func (m *Manager) checkSchema(ctx context.Context) error {
	kv, ok, _, err := m.o.Store.Get(ctx, keySchema)
	if err != nil {
		return err
	}
	if ok && string(kv.Value) != schemaVersion {
		return fmt.Errorf("schema version of the data: %q: must be %q: it was written by another version of shunt", kv.Value, schemaVersion)
	}
	return nil
}

// makeRingKey makes the first ring hash key of the cluster.
func (m *Manager) makeRingKey(ctx context.Context) error {
	snap, err := m.o.Store.List(ctx, dirRingKeys)
	if err != nil || len(snap.KVs) > 0 {
		return err
	}
	k := plan.Key{ID: 1}
	rand.Read(k.Key[:])
	key := dirRingKeys + "1"
	value, err := m.secrets.sealKey(key, k)
	if err != nil {
		return fmt.Errorf("make ring key: %w", err)
	}
	_, err = m.commit(ctx, store.Txn{Compares: []store.Compare{{Key: key}}, Ops: []store.Op{store.Put(key, value)}})
	return err
}

// commit adds the fence to a transaction. Succeeded is false when another compare failed.
func (m *Manager) commit(ctx context.Context, t store.Txn) (store.TxnResult, error) {
	t.Compares = append(t.Compares, store.Compare{Key: keyLeader, ModRevision: m.leaderMod})
	res, err := m.o.Store.Txn(ctx, t)
	if err != nil || res.Succeeded {
		return res, err
	}
	kv, _, _, err := m.o.Store.Get(ctx, keyLeader)
	if err != nil {
		return res, err
	}
	if kv.ModRevision != m.leaderMod {
		m.stop(ErrFenced)
		return res, ErrFenced
	}
	return res, nil
}

// follow loads the view and keeps it at the store's newest revision.
func (m *Manager) follow(ctx context.Context) error {
	snap, err := m.o.Store.List(ctx, root)
	if err != nil {
		return fmt.Errorf("load state: %w", err)
	}
	m.view.state.Epoch = m.epoch
	if err := m.view.load(snap); err != nil {
		return fmt.Errorf("load state: %w", err)
	}
	m.ctx, m.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	watcher, err := m.o.Store.Watch(m.ctx, root, snap.Revision+1)
	if err != nil {
		return fmt.Errorf("load state: %w", err)
	}
	var workers sync.WaitGroup
	workers.Go(func() {
		defer watcher.Close()
		m.stop(m.pump(watcher))
	})
	for _, d := range m.duties() {
		workers.Go(func() {
			if err := d.run(m.ctx); err != nil {
				m.stop(fmt.Errorf("%s: %w", d.name, err))
			}
		})
	}
	go func() {
		defer close(m.done)
		workers.Wait()
	}()
	return nil
}

// pump folds every revision until the manager stops.
func (m *Manager) pump(w store.Watcher) error {
	for {
		batch, err := w.Next(m.ctx)
		if err != nil {
			return fmt.Errorf("follow the store: %w", err)
		}
		if err := m.view.fold(batch); err != nil {
			return fmt.Errorf("follow the store: %w", err)
		}
		if m.view.leaderMod() != m.leaderMod {
			return ErrFenced
		}
	}
}

// stop ends everything with a cause; the first one counts.
func (m *Manager) stop(cause error) {
	if m.cancel != nil {
		m.cancel(cause)
	}
}

// Close ends the term's work. It does not close the store.
func (m *Manager) Close() {
	m.stop(net.ErrClosed)
	<-m.done
}

// Epoch is this manager's leadership term.
func (m *Manager) Epoch() int64 { return m.epoch }

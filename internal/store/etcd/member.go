package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/shuntlb/shunt/internal/store"
)

// Options of a member.
type Options struct {
	Dir string
	// Name is its name among the members; "shunt" when empty.
	Name string
	// Peer is the address:port at which the other members reach it. Without one it is alone and
	// listens nowhere.
	Peer string
	// Cluster is the result of Cluster.Add for the first start of a member that joins others; nil
	// for the first member.
	Cluster []string
	// TLS are the files for the authentication between members; required with a Peer.
	TLS TLS
	// ForceNew removes all other members: the member continues alone with its data. For use when
	// the majority is lost.
	ForceNew bool
	Log      *slog.Logger
	// UnsafeNoFsync disables durability; for tests only.
	UnsafeNoFsync bool
	// bootstrap starts a whole cluster at the same time, with this token; for tests only.
	bootstrap string
	// quota is the maximum size of the database in bytes; 0 is quotaBytes.
	quota int64
	// tend holds the limits of the maintenance loop (tend); the zero value is the default.
	tend tendLimits
}

// TLS holds paths of PEM files. The certificate is for server and client, and must have the name
// pki.ServerName, which no other part of Shunt has. The files are read again at every handshake.
type TLS struct{ Cert, Key, CA string }

// Member is a Store in an embedded etcd member.
type Member struct {
	*Store
	etcd   *embed.Etcd
	peer   string
	dir    string
	limits tendLimits
	fatal  *fatal
	once   sync.Once
	// used is the smallest size that the database used since its history was compacted, in bytes;
	// only tend uses it.
	used int64
}

var _ store.Cluster = (*Member)(nil)

// tellWaitEvery is the interval of log messages while a member waits for others, which has no time
// limit.
const tellWaitEvery = 10 * time.Second

// startTimeout bounds the replay of the log of a lone member.
const startTimeout = 60 * time.Second

// Open starts the member and waits until it serves and has a vote: a new one until it has caught up
// with the others, any other until a majority of them is up. The directory must not be in use by
// another process. Callers must take a lock first, because etcd's own lock would wait without
// limit.
func Open(ctx context.Context, o Options) (*Member, error) {
	m, err := open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", o.Dir, err)
	}
	return m, nil
}

func open(ctx context.Context, o Options) (*Member, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	cluster, err := initialCluster(o)
	if err != nil {
		return nil, err
	}
	o.Cluster = cluster
	if err := checkFiles(o.Dir); err != nil {
		return nil, err
	}
	failed := &fatal{}
	cfg, err := config(o, failed)
	if err != nil {
		return nil, err
	}
	e, err := start(cfg, failed)
	if err != nil {
		return nil, err
	}
	m := &Member{
		Store: newStore(v3client.New(e.Server), o.Log), etcd: e, peer: o.Peer, dir: o.Dir,
		limits: o.tend.orDefault(), fatal: failed,
	}
	failed.tell(m.fail)
	m.tending.Go(m.watchServer)
	if err := m.settle(ctx, o); err != nil {
		m.Close()
		return nil, err
	}
	if err := m.firstTend(ctx); err != nil {
		m.log.Warn("tending the store failed", "error", err)
	}
	m.tending.Go(m.tend)
	return m, nil
}

// start starts etcd, which panics or ends the goroutine if its files are damaged.
func start(cfg *embed.Config, failed *fatal) (e *embed.Etcd, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				e, err = nil, broken(cfg.Dir, fmt.Errorf("%v", r))
			}
		}()
		e, err = embed.StartEtcd(cfg)
	}()
	<-done
	if cause := failed.cause(); cause != nil {
		return nil, broken(cfg.Dir, cause)
	}
	// etcd has no error value for it.
	if err != nil && strings.Contains(err.Error(), "found data inconsistency with peers") {
		return nil, damaged(err)
	}
	return e, err
}

// settle waits until the member is part of its cluster as Open requires.
func (m *Member) settle(ctx context.Context, o Options) error {
	others := len(m.etcd.Server.Cluster().Members()) - 1
	if others > 0 && m.peer == "" {
		return fmt.Errorf("%w: it is one of %d members and needs its peer address again", store.ErrMember, others+1)
	}
	if err := m.ready(ctx, others > 0); err != nil {
		return err
	}
	if m.peer == "" {
		return nil
	}
	if err := m.promote(ctx); err != nil {
		return err
	}
	return m.readdress(ctx)
}

// ready waits for the cluster's leader.
func (m *Member) ready(ctx context.Context, others bool) error {
	if !others {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, startTimeout)
		defer cancel()
	}
	return m.until(ctx, "waits for a majority of the members", func() (bool, error) {
		select {
		case <-m.etcd.Server.ReadyNotify():
			return true, nil
		default:
			return false, nil
		}
	})
}

// promote requests a vote until the leader decides that this member has caught up.
func (m *Member) promote(ctx context.Context) error {
	id := m.etcd.Server.MemberID()
	return m.until(ctx, "catches up with the other members", func() (bool, error) {
		if !m.etcd.Server.IsLearner() {
			return true, nil
		}
		if _, err := m.etcd.Server.PromoteMember(ctx, uint64(id)); err != nil {
			return false, nil
		}
		m.log.Info("member has caught up and votes")
		return true, nil
	})
}

// readdress updates the peer address of this member in the cluster if it changed.
func (m *Member) readdress(ctx context.Context) error {
	self := m.etcd.Server.Cluster().Member(m.etcd.Server.MemberID())
	want, err := types.NewURLs([]string{peerURL(m.peer)})
	if err != nil {
		return err
	}
	if self == nil || len(self.PeerURLs) == 1 && self.PeerURLs[0] == want[0].String() {
		return nil
	}
	changed := membership.Member{ID: self.ID, RaftAttributes: membership.RaftAttributes{PeerURLs: want.StringSlice()}}
	if _, err := m.etcd.Server.UpdateMember(ctx, changed); err != nil {
		return m.fault("tell the members the peer address", err)
	}
	m.log.Info("members know the new peer address", "peer", m.peer)
	return nil
}

// until retries until try succeeds, and logs the reason of the wait.
func (m *Member) until(ctx context.Context, what string, try func() (bool, error)) error {
	retry, tell := time.NewTicker(10*time.Millisecond), time.NewTicker(tellWaitEvery)
	defer retry.Stop()
	defer tell.Stop()
	for {
		if ok, err := try(); ok || err != nil {
			return err
		}
		select {
		case <-retry.C:
		case <-tell.C:
			m.log.Info("member "+what, "dir", m.dir)
		case <-m.life.Done():
			return m.ended()
		case <-ctx.Done():
			return fmt.Errorf("member %s: %w", what, ctx.Err())
		}
	}
}

// watchServer ends the store when etcd stops on its own, which it does when others removed this
// member.
func (m *Member) watchServer() {
	select {
	case <-m.etcd.Server.StopNotify():
		m.end(store.ErrRemoved)
	case <-m.life.Done():
	}
}

// fail ends the store because etcd cannot continue: its disk is full, for example.
func (m *Member) fail(cause error) { m.end(cause) }

// closeTimeout bounds the closing of a failed member, which may hold locks.
const closeTimeout = 2 * time.Second

// Close implements store.Store. It returns when everything is on disk. If the member failed it
// waits for at most closeTimeout.
func (m *Member) Close() error {
	m.once.Do(func() {
		m.end(store.ErrClosed)
		m.tending.Wait()
		m.client.Close()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			m.etcd.Close()
		}()
		var patience <-chan time.Time
		if m.fatal.cause() != nil {
			patience = time.After(closeTimeout)
		}
		select {
		case <-closed:
		case <-patience:
		}
	})
	return nil
}

// startSpace is the space that a member needs at its first start: a segment of its log, its
// database and a reserve.
const startSpace = 64 << 20

// broken returns the reason why a member cannot start: etcd reports a full disk in the same way as
// damage.
func broken(dir string, err error) error {
	if free, unknown := freeSpace(dir); unknown == nil && free < startSpace {
		return fmt.Errorf("%w on the disk of %s: %d MiB are free: make room: %w", store.ErrNoSpace, dir, free>>20, err)
	}
	return damaged(err)
}

var errDamaged = errors.New("files of the member are damaged")

// damaged adds the repair to the error.
func damaged(err error) error {
	return fmt.Errorf("%w: %w: with other members, remove this one (shunt member remove), empty the data directory and join again; without, restore a backup", errDamaged, err)
}

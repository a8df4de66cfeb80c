package etcd

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/shuntlb/shunt/internal/store"
)

// TestLeaseTime: with Shunt's election timeouts a lease of two seconds lasts two seconds, alone and
// with others.
func TestLeaseTime(t *testing.T) {
	t.Parallel()
	alone, err := Open(t.Context(), Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	for _, m := range []*Member{alone, newGroup(t, 1).members[0]} {
		id, err := m.Grant(t.Context(), 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if ttl, err := m.renew(t.Context(), id, time.Minute); err != nil || ttl != 2*time.Second {
			t.Errorf("a lease of 2s lasts %v, %v", ttl, err)
		}
	}
}

// TestStoodStill: a process whose monotonic clock advanced by more than the lease time without a
// renewal has lost the lease, although etcd would still renew it.
func TestStoodStill(t *testing.T) {
	t.Parallel()
	m, err := Open(t.Context(), Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := newStore(v3client.New(m.etcd.Server), nil)
	defer s.Close()
	id, err := s.Grant(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var jump, looks atomic.Int64
	s.now = func() time.Time {
		if looks.Add(1) == 4 {
			jump.Store(int64(5100 * time.Millisecond))
		}
		return time.Now().Add(time.Duration(jump.Load()))
	}
	if err := s.KeepAlive(t.Context(), id); !errors.Is(err, store.ErrLeaseLost) || !strings.Contains(err.Error(), "stood still") {
		t.Errorf("keep alive: %v", err)
	}
	if err := s.Renew(t.Context(), id); err != nil {
		t.Errorf("etcd itself: %v", err)
	}
}

// TestStoodStillInARenewal: a process that stood still during a renewal has lost its lease,
// although that renewal fails only now.
func TestStoodStillInARenewal(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	s := newStore(v3client.New(g.members[0].etcd.Server), nil)
	defer s.Close()
	id, err := s.Grant(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	g.members[1].Close()
	g.members[2].Close()
	var looks atomic.Int64
	s.now = func() time.Time {
		now := time.Now()
		if looks.Add(1) > 2 { // after the start and the first renewal
			now = now.Add(6 * time.Second)
		}
		return now
	}
	if err := s.KeepAlive(t.Context(), id); !errors.Is(err, store.ErrLeaseLost) || !strings.Contains(err.Error(), "stood still") {
		t.Errorf("keep alive: %v", err)
	}
}

// TestUnknown: when no member answers, KeepAlive returns the store's error, not ErrLeaseLost.
func TestUnknown(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	m := g.members[0]
	id, err := m.Grant(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	g.members[1].Close()
	g.members[2].Close()
	if err := m.KeepAlive(t.Context(), id); err == nil || errors.Is(err, store.ErrLeaseLost) || !strings.Contains(err.Error(), "was not renewed") {
		t.Errorf("without a majority: %v", err)
	}
}

// TestLeaderChanges: a lease that is kept alive outlives every leader of etcd, including one that
// fails silently.
func TestLeaderChanges(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	m := g.members[0]
	id, err := m.Grant(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	kept := make(chan error, 1)
	go func() { kept <- m.KeepAlive(ctx, id) }()
	commit(t, m, store.Op{Key: "/leased", Lease: id})
	for _, name := range []string{"m1", "m2", "m3", "m1", "m3"} {
		g.lead(name)
	}
	g.members[2].Close()
	// Wait as long as a lease lasts that is not kept alive.
	other, err := g.members[1].Grant(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	rev := commit(t, g.members[1], store.Op{Key: "/not kept", Lease: other})
	w, err := m.Watch(t.Context(), "/not kept", rev+1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if b, err := w.Next(t.Context()); err != nil || !b.Events[0].Deleted {
		t.Fatalf("%+v, %v", b, err)
	}
	if _, ok, _, err := m.Get(t.Context(), "/leased"); err != nil || !ok {
		t.Errorf("the lease that was kept alive: %v %v", ok, err)
	}
	stop()
	if err := <-kept; !errors.Is(err, context.Canceled) {
		t.Errorf("keep alive: %v", err)
	}
}

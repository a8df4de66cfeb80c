package manager

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
)

// numb is a store that delivers no changes and no renewals to its manager. It can read and write.
type numb struct {
	*store.Memory
	watching chan struct{} // closed: no changes are delivered
}

func (n numb) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := n.Memory.Watch(ctx, prefix, from)
	return numbWatcher{w, n.watching}, err
}

func (n numb) Renew(ctx context.Context, _ store.LeaseID) error {
	<-ctx.Done()
	return ctx.Err()
}

type numbWatcher struct {
	store.Watcher
	watching chan struct{}
}

func (w numbWatcher) Next(ctx context.Context) (store.Batch, error) {
	b, err := w.Watcher.Next(ctx)
	select {
	case <-w.watching:
		<-ctx.Done()
		return b, ctx.Err()
	default:
		return b, err
	}
}

// newNumb returns a leader that lost its lease without notice.
func newNumb(t *testing.T) (*Manager, *clock.Fake) {
	t.Helper()
	c := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s := numb{store.NewMemory(), make(chan struct{})}
	dir, err := OpenDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(t.Context(), Options{Dir: dir, Store: s, Name: "m1", Listen: "127.0.0.1:1", Clock: c, keepNothing: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		dir.Close()
	})
	close(s.watching)
	if err := s.Lapse(s.LeaseOf(keyLeader)); err != nil {
		t.Fatal(err)
	}
	return m, c
}

// TestLeaderThatStoodStillProvesItself: once its last renewal is older than the lease, a leader
// does not act as one before it has read the store.
func TestLeaderThatStoodStillProvesItself(t *testing.T) {
	m, c := newNumb(t)
	if _, err := m.lead(t.Context()); err != nil {
		t.Fatalf("within its lease: %v", err)
	}
	c.Advance(leaseTTL + time.Millisecond)
	if _, err := m.lead(t.Context()); err == nil {
		t.Error("it leads with a lease that is over")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.term != nil && m.term.ctx.Err() == nil {
		t.Error("the term goes on")
	}
}

// TestAnswerWithoutACommitIsProven: a leader that is frozen between the proof of its lease and its
// response, while another one writes, does not respond from its old state.
func TestAnswerWithoutACommitIsProven(t *testing.T) {
	refusal := errors.New("there is no such thing")
	for name, c := range map[string]struct {
		dryRun bool
		answer error
	}{
		"a refusal":          {false, refusal},
		"nothing to do":      {false, nil},
		"what it would do":   {true, nil},
		"a refusal, dry run": {true, refusal},
	} {
		m, clock := newNumb(t)
		_, _, err := m.write(t.Context(), c.dryRun, 1, func(*term, *write) error {
			clock.Advance(leaseTTL + time.Millisecond)
			return c.answer
		})
		if !errors.Is(err, ErrFenced) {
			t.Errorf("%s: answered with %v by one that leads no more, must be fenced", name, err)
		}
		if _, _, err := m.write(t.Context(), c.dryRun, 1, func(*term, *write) error { return c.answer }); err == nil || errors.Is(err, refusal) {
			t.Errorf("%s: the term goes on: %v", name, err)
		}
	}
}

// TestRefusalsAreOfThePresent: a leader that was frozen and replaced does not refuse by its old
// state.
func TestRefusalsAreOfThePresent(t *testing.T) {
	m, clock := newNumb(t)
	err := m.present().refuse(t.Context(), func() error {
		clock.Advance(leaseTTL + time.Millisecond)
		return noAccess{"0123456789abcdef"}
	})
	if !errors.Is(err, ErrFenced) {
		t.Errorf("answered with %v by one that leads no more, must be fenced", err)
	}
}

// TestRefusalsOfAccessKnowTheLastWrite although the view is behind, because no caller waited for
// the write to arrive.
func TestRefusalsOfAccessKnowTheLastWrite(t *testing.T) {
	s := &late{Memory: store.NewMemory(), hold: make(chan struct{})}
	dir, err := OpenDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	close(s.hold)
	m, err := Open(t.Context(), Options{Dir: dir, Store: s, Name: "m1", Listen: "127.0.0.1:1", keepNothing: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	open := s.stop()
	// A member sees its own writes immediately, unless it lacks an earlier change.
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put(root+"other", nil)}}); err != nil {
		t.Fatal(err)
	}
	stored, err := s.Memory.Watch(t.Context(), dirAccess, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	gone, leave := context.WithCancel(t.Context())
	go func() {
		_, _ = stored.Next(t.Context())
		leave() // the caller leaves before the view has the write
	}()
	tok, _, err := m.createAccess(gone, &apiv1.CreateAccessRequest{Name: "ann", Role: "viewer"}, time.Hour)
	if err == nil || m.view.access(tok.ID) != nil {
		t.Fatalf("the view was not behind: %v", err)
	}
	answer := make(chan error)
	go func() { answer <- m.revokeAccess(t.Context(), tok.ID) }()
	open()
	if err := <-answer; err != nil {
		t.Errorf("revoking what is stored: %v", err)
	}
}

// late is a store whose changes are delivered only while they are not held.
type late struct {
	*store.Memory
	mu   sync.Mutex
	hold chan struct{} // closed: nothing is held
}

// stop holds changes until the returned function is called.
func (l *late) stop() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = make(chan struct{})
	return sync.OnceFunc(func() { close(l.hold) })
}

func (l *late) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := l.Memory.Watch(ctx, prefix, from)
	return lateWatcher{w, l}, err
}

type lateWatcher struct {
	store.Watcher
	of *late
}

func (w lateWatcher) Next(ctx context.Context) (store.Batch, error) {
	b, err := w.Watcher.Next(ctx)
	w.of.mu.Lock()
	hold := w.of.hold
	w.of.mu.Unlock()
	select {
	case <-hold:
	case <-ctx.Done():
	}
	return b, err
}

// TestLaterEpochMakesALeaderProveItself: a node that has applied a later epoch ends the term of a
// leader that was replaced.
func TestLaterEpochMakesALeaderProveItself(t *testing.T) {
	m, _ := newNumb(t)
	term, err := m.lead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t.Context(), identity{name: "mux1", role: "mux"})
	m.checkEpoch(s, term.epoch)
	if term.ctx.Err() != nil {
		t.Fatalf("a node of the same epoch ended the term: %v", context.Cause(term.ctx))
	}
	m.checkEpoch(s, term.epoch+1)
	if !errors.Is(context.Cause(term.ctx), ErrFenced) {
		t.Errorf("the term ended with %v: must be fenced", context.Cause(term.ctx))
	}
}

// readCounter is a store that counts its reads of single keys.
type readCounter struct {
	*store.Memory
	reads atomic.Int64
}

func (c *readCounter) Get(ctx context.Context, key string) (store.KV, bool, int64, error) {
	c.reads.Add(1)
	return c.Memory.Get(ctx, key)
}

// TestReportsDoNotWaitForTheStore: reports of the present epoch are accepted without a read of the
// store, regardless of the age of the last renewal. One node that has applied a plan that never
// existed makes the leader prove itself once.
func TestReportsDoNotWaitForTheStore(t *testing.T) {
	c := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s := &readCounter{Memory: store.NewMemory()}
	dir, err := OpenDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	m, err := Open(t.Context(), Options{Dir: dir, Store: s, Name: "m1", Listen: "127.0.0.1:1", Clock: c, keepNothing: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tm := m.present()
	tm.mu.Lock()
	tm.renewed = tm.renewed.Add(-2 * leaseTTL)
	tm.mu.Unlock()
	node, before := newSession(t.Context(), identity{name: "host1", role: "host"}), s.reads.Load()
	for range 5 {
		m.checkEpoch(node, tm.epoch)
	}
	if n := s.reads.Load() - before; n > 0 {
		t.Errorf("reports of the present epoch: %d reads of the store, want none", n)
	}
	for range 5 {
		m.checkEpoch(node, tm.epoch+3)
	}
	if n := s.reads.Load() - before; n != 1 {
		t.Errorf("reports of an epoch that never was: %d reads of the store, want 1", n)
	}
}

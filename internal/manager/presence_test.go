package manager_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/store"
)

// twin opens a manager of the same name and cluster on another machine.
func (r *rig) twin(path string) (*manager.Manager, error) {
	r.t.Helper()
	copySecrets(r.t, r.path, path)
	dir, err := manager.OpenDataDir(path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { dir.Close() })
	m, err := manager.Open(r.t.Context(), manager.Options{
		Dir: dir, Store: r.store, Name: r.name, Listen: freePeer(r.t), Version: "test", Log: logger(r.t), Clock: r.clock,
	})
	if err == nil {
		r.t.Cleanup(m.Close)
	}
	return m, err
}

// TestNameOfAManagerThatIsUpIsRefused, and the manager that has the name keeps leading its term.
func TestNameOfAManagerThatIsUpIsRefused(t *testing.T) {
	r := newRig(t, store.NewMemory())
	_, err := r.twin(t.TempDir())
	if err == nil || !strings.Contains(err.Error(), `"m1"`) || !strings.Contains(err.Error(), r.addr) {
		t.Errorf("a second m1: %v: must be refused with the name and %s", err, r.addr)
	}
	if r.m.Epoch() != 1 {
		t.Errorf("epoch %d: nobody may have begun another one", r.m.Epoch())
	}
	r.apply(network())
}

// proving is a clock that calls begun when a caller starts to wait for the maximum lifetime of a
// registration without renewals.
type proving struct {
	clock.Clock
	begun func()
}

func (p proving) After(d time.Duration) <-chan time.Time {
	if d == 21*time.Second {
		p.begun()
	}
	return p.Clock.After(d)
}

// TestReplacedMachineTakesItsNameOver: the old machine does not answer, and its registration
// expires while the new one waits.
func TestReplacedMachineTakesItsNameOver(t *testing.T) {
	s := store.NewMemory()
	r := newRigOf(t, rig{store: &deaf{Store: s, deaf: true}})
	r.stop()
	waits := make(chan struct{})
	r.clock = proving{clock.System{}, sync.OnceFunc(func() { close(waits) })}
	opened := make(chan error, 1)
	path := t.TempDir()
	go func() {
		_, err := r.twin(path)
		opened <- err
	}()
	select {
	case <-waits:
	case err := <-opened:
		t.Fatalf("the new machine did not wait for the registration to lapse: %v", err)
	}
	if err := s.Lapse(s.LeaseOf("/shunt/managers/m1")); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Errorf("the new machine: %v", err)
	}
}

// TestRegistrationThatIsRenewedIsOfAManager, although no manager answers at its address because the
// connection is cut.
func TestRegistrationThatIsRenewedIsOfAManager(t *testing.T) {
	c := clock.NewFake(time.Now())
	r := newRigOf(t, rig{store: &deaf{Store: store.NewMemory(), deaf: true}})
	r.stop()
	r.clock = c
	opened := make(chan error, 1)
	path := t.TempDir()
	go func() {
		_, err := r.twin(path)
		opened <- err
	}()
	for {
		select {
		case err := <-opened:
			if err == nil || !strings.Contains(err.Error(), "another one of this name is up") {
				t.Errorf("%v: must be refused", err)
			}
			return
		case <-time.After(time.Millisecond):
			c.Advance(time.Second)
		}
	}
}

// frozen is a store that reports a lost lease only after the thaw, as a frozen process would see
// it.
type frozen struct {
	store.Store
	thaw chan struct{}
}

func (f frozen) KeepAlive(ctx context.Context, id store.LeaseID) error {
	err := f.Store.KeepAlive(ctx, id)
	select {
	case <-f.thaw:
	case <-ctx.Done():
	}
	return err
}

// TestManagerWhoseNameWasTakenEnds: it was frozen until its registration had expired, and another
// one took the name.
func TestManagerWhoseNameWasTakenEnds(t *testing.T) {
	s := store.NewMemory()
	thaw := make(chan struct{})
	r := newRigOf(t, rig{store: frozen{s, thaw}})
	if err := s.Lapse(s.LeaseOf("/shunt/managers/m1")); err != nil {
		t.Fatal(err)
	}
	next := &rig{t: t, store: s, name: "m1", path: t.TempDir()}
	copySecrets(t, r.path, next.path)
	next.start()
	t.Cleanup(func() { next.stop() })
	close(thaw)
	if err := <-r.ended; err == nil || !strings.Contains(err.Error(), next.addr) {
		t.Errorf("the former m1 ended with %v: must name %s", err, next.addr)
	}
	next.apply(network())
}

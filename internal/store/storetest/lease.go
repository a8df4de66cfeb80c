package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// leaseTTL is short, so that the suite does not wait long.
const leaseTTL = time.Second

// lapser is a store without a clock, whose leases expire on request.
type lapser interface {
	Lapse(id store.LeaseID) error
}

func grant(t testing.TB, s store.Store) store.LeaseID {
	t.Helper()
	id, err := s.Grant(t.Context(), leaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	if id == 0 {
		t.Fatal("a lease has the id of none")
	}
	return id
}

// lapse lets a lease expire that is not renewed.
func lapse(t testing.TB, s store.Store, id store.LeaseID) {
	t.Helper()
	if l, ok := s.(lapser); ok {
		if err := l.Lapse(id); err != nil {
			t.Fatal(err)
		}
	}
}

func leased(key, value string, id store.LeaseID) store.Op {
	return store.Op{Key: key, Value: []byte(value), Lease: id}
}

func present(t testing.TB, s store.Store, key string) bool {
	t.Helper()
	_, ok, _, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func watch(t testing.TB, s store.Store, prefix string, from int64) store.Watcher {
	t.Helper()
	w, err := s.Watch(t.Context(), prefix, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// deleted checks that the next batch deletes exactly these keys.
func deleted(t testing.TB, w store.Watcher, keys ...string) {
	t.Helper()
	b := next(t, w)
	gone := map[string]bool{}
	for _, ev := range b.Events {
		gone[ev.KV.Key] = ev.Deleted
	}
	if len(gone) != len(keys) {
		t.Fatalf("batch %+v: want deletions of %v", b, keys)
	}
	for _, key := range keys {
		if !gone[key] {
			t.Fatalf("batch %+v: %s is not deleted", b, key)
		}
	}
}

func testRevoke(t *testing.T, s store.Store) {
	a, b := grant(t, s), grant(t, s)
	res := commit(t, s, store.Txn{Ops: []store.Op{
		leased("/l/1", "", a), leased("/l/2", "", a), leased("/l/other", "", b), leased("/l/freed", "", a), leased("/l/moved", "", a), store.Put("/l/none", nil),
	}})
	put(t, s, "/l/freed", "a put without a lease takes the key off it")
	moved := commit(t, s, store.Txn{Ops: []store.Op{leased("/l/moved", "", b)}})
	w := watch(t, s, "/l/", moved.Revision+1)
	if err := s.Renew(t.Context(), a); err != nil {
		t.Fatalf("renew: %v", err)
	}
	if err := s.Revoke(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	deleted(t, w, "/l/1", "/l/2")
	for _, key := range []string{"/l/other", "/l/freed", "/l/moved", "/l/none"} {
		if !present(t, s, key) {
			t.Errorf("%s went with a lease that was not its own", key)
		}
	}
	if err := s.Revoke(t.Context(), a); err != nil {
		t.Errorf("revoking twice: %v", err)
	}
	if res := commit(t, s, store.Txn{Compares: []store.Compare{{Key: "/l/1"}}, Ops: []store.Op{store.Put("/l/1", nil)}}); !res.Succeeded {
		t.Error("a key that went with its lease is not absent to a compare")
	}
	if res := commit(t, s, store.Txn{Compares: []store.Compare{{Key: "/l/2", ModRevision: res.Revision}}}); res.Succeeded {
		t.Error("a key that went with its lease still has its revision")
	}
	next(t, w)
	if err := s.Revoke(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	deleted(t, w, "/l/other", "/l/moved")
}

// testLapse: a lease that is not renewed expires; one that is kept alive meanwhile does not.
func testLapse(t *testing.T, s store.Store) {
	kept := grant(t, s)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.KeepAlive(ctx, kept) }()
	rev := commit(t, s, store.Txn{Ops: []store.Op{leased("/l/kept", "", kept)}}).Revision
	w := watch(t, s, "/l/", rev+1)
	// Several times the duration of the lease that is kept alive.
	for i := range 2 {
		id, key := grant(t, s), fmt.Sprintf("/l/%d", i)
		commit(t, s, store.Txn{Ops: []store.Op{leased(key, "", id)}})
		next(t, w)
		lapse(t, s, id)
		deleted(t, w, key)
		if err := s.Renew(t.Context(), id); !errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("renewing what ran out: %v", err)
		}
		if err := s.KeepAlive(t.Context(), id); !errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("keeping alive what ran out: %v", err)
		}
	}
	if !present(t, s, "/l/kept") {
		t.Error("a lease that was kept alive ran out")
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("keep alive with a cancelled context: %v", err)
	}
	if err := s.Revoke(t.Context(), kept); err != nil {
		t.Error(err)
	}
}

// testLost: a transaction that uses a lost lease changes nothing.
func testLost(t *testing.T, s store.Store) {
	rev := put(t, s, "/a", "before")
	id := grant(t, s)
	if err := s.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, lost := range []store.LeaseID{id, 0x7fff_0000_1234} {
		res, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/a", []byte("after")), leased("/l", "", lost)}})
		if !errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("put with a lost lease: %+v %v", res, err)
		}
		if err := s.Renew(t.Context(), lost); !errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("renewing a lost lease: %v", err)
		}
	}
	// A false compare takes precedence.
	if res := commit(t, s, store.Txn{Compares: []store.Compare{{Key: "/a"}}}); res.Succeeded {
		t.Error("a compare that does not hold")
	}
	kv, _, now, err := s.Get(t.Context(), "/a")
	if err != nil || string(kv.Value) != "before" || now != rev || present(t, s, "/l") {
		t.Errorf("after refused transactions: %q at %d, %v; it was at %d", kv.Value, now, err, rev)
	}
}

func testKeepAlive(t *testing.T, s store.Store) {
	id := grant(t, s)
	done := make(chan error, 1)
	go func() { done <- s.KeepAlive(t.Context(), id) }()
	if err := s.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("keep alive of a lease that is revoked: %v", err)
	}
	id = grant(t, s)
	go func() { done <- s.KeepAlive(context.Background(), id) }()
	if err := s.Renew(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(t.Context(), grant(t, s)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, store.ErrClosed) {
		t.Errorf("keep alive while the store closes: %v", err)
	}
	for name, call := range map[string]func() error{
		"grant":      func() error { _, err := s.Grant(context.Background(), leaseTTL); return err },
		"renew":      func() error { return s.Renew(context.Background(), id) },
		"revoke":     func() error { return s.Revoke(context.Background(), id) },
		"keep alive": func() error { return s.KeepAlive(context.Background(), id) },
		"barrier":    func() error { _, err := s.Barrier(context.Background()); return err },
	} {
		if err := call(); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s after close: %v", name, err)
		}
	}
}

// RunMembers checks the contract between two members of one store, which are empty; the suite does
// not close them.
func RunMembers(t *testing.T, open func(t *testing.T) (a, b store.Store)) {
	for name, check := range map[string]func(*testing.T, store.Store, store.Store){
		"barrier": testBarrier,
		"lease":   testForeignLease,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := open(t)
			check(t, a, b)
		})
	}
}

// testBarrier: a barrier on one member is at least the revision that another member acknowledged
// before, and watchers there reach the barrier.
func testBarrier(t *testing.T, a, b store.Store) {
	w := watch(t, b, "/", now(t, b)+1)
	for i := range 100 {
		rev := put(t, a, "/a", fmt.Sprint(i))
		barrier, err := b.Barrier(t.Context())
		if err != nil || barrier < rev {
			t.Fatalf("barrier %d, %v, after %d was acknowledged", barrier, err, rev)
		}
		kv, _, _, err := b.Get(t.Context(), "/a")
		if err != nil || kv.ModRevision < rev {
			t.Fatalf("got revision %d, %v, after %d was acknowledged", kv.ModRevision, err, rev)
		}
		for {
			batch, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if batch.Revision >= barrier {
				break
			}
		}
	}
}

// testForeignLease: a lease is valid on every member.
func testForeignLease(t *testing.T, a, b store.Store) {
	id := grant(t, a)
	done := make(chan error, 1)
	go func() { done <- b.KeepAlive(t.Context(), id) }()
	commit(t, b, store.Txn{Ops: []store.Op{leased("/l", "", id)}})
	if !present(t, a, "/l") {
		t.Error("a key on a lease of another member")
	}
	if err := b.Renew(t.Context(), id); err != nil {
		t.Errorf("renew a lease of another member: %v", err)
	}
	if err := a.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("keep alive of a lease that another member revoked: %v", err)
	}
	if present(t, b, "/l") {
		t.Error("a key on a lease that another member revoked")
	}
}

// Package storetest holds the conformance suite for store.Store.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/store"
)

// Run checks the contract. Open returns an empty store; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for name, check := range map[string]func(*testing.T, store.Store){
		"read":    testRead,
		"txn":     testTxn,
		"watch":   testWatch,
		"compact": testCompact,
		"renew":   testRenew,
		"close":   testClose,
		"model":   testModel,
		"revoke":  testRevoke,
		"lapse":   testLapse,
		"lost":    testLost,
		"keep":    testKeepAlive,
		"barrier": func(t *testing.T, s store.Store) { testBarrier(t, s, s) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() { s.Close() })
			check(t, s)
		})
	}
}

func commit(t testing.TB, s store.Store, txn store.Txn) store.TxnResult {
	t.Helper()
	res, err := s.Txn(t.Context(), txn)
	if err != nil {
		t.Fatalf("txn: %v", err)
	}
	return res
}

func put(t testing.TB, s store.Store, key, value string) int64 {
	t.Helper()
	return commit(t, s, store.Txn{Ops: []store.Op{store.Put(key, []byte(value))}}).Revision
}

// now returns the store's revision.
func now(t testing.TB, s store.Store) int64 {
	t.Helper()
	rev, err := s.Barrier(t.Context())
	if err != nil {
		t.Fatalf("barrier: %v", err)
	}
	return rev
}

func testRead(t *testing.T, s store.Store) {
	if _, ok, _, err := s.Get(t.Context(), "/a"); ok || err != nil {
		t.Fatalf("get of an absent key: ok %v, err %v", ok, err)
	}
	first := put(t, s, "/a/1", "one")
	second := put(t, s, "/a/2", "two")
	third := put(t, s, "/a/1", "one again")
	put(t, s, "/b", "other")
	kv, ok, rev, err := s.Get(t.Context(), "/a/1")
	want := store.KV{Key: "/a/1", Value: []byte("one again"), CreateRevision: first, ModRevision: third}
	if err != nil || !ok || rev != third+1 || !reflect.DeepEqual(kv, want) {
		t.Fatalf("get: %+v %v %d %v, want %+v", kv, ok, rev, err, want)
	}
	snap, err := s.List(t.Context(), "/a/")
	if err != nil || len(snap.KVs) != 2 || snap.KVs[0].Key != "/a/1" || snap.KVs[1].ModRevision != second {
		t.Fatalf("list: %+v %v", snap, err)
	}
}

func testTxn(t *testing.T, s store.Store) {
	first := put(t, s, "/a", "1")
	res := commit(t, s, store.Txn{
		Compares: []store.Compare{{Key: "/a", ModRevision: first + 1}},
		Ops:      []store.Op{store.Put("/b", nil)},
	})
	if res.Succeeded || res.Revision != first {
		t.Fatalf("a compare that does not hold: %+v", res)
	}
	res = commit(t, s, store.Txn{
		Compares: []store.Compare{{Key: "/a", ModRevision: first}, {Key: "/b"}},
		Ops:      []store.Op{store.Delete("/a"), store.Put("/b", []byte("2")), store.Put("/c", []byte("3"))},
	})
	if !res.Succeeded || res.Revision != first+1 {
		t.Fatalf("a transaction of three operations: %+v", res)
	}
	snap, _ := s.List(t.Context(), "/")
	if len(snap.KVs) != 2 || snap.KVs[0].ModRevision != first+1 || snap.KVs[1].ModRevision != first+1 {
		t.Fatalf("after it: %+v", snap)
	}
	res = commit(t, s, store.Txn{Ops: []store.Op{store.Delete("/never")}})
	if !res.Succeeded || res.Revision != first+1 {
		t.Fatalf("deleting an absent key: %+v", res)
	}
	for _, bad := range []store.Txn{
		{Ops: []store.Op{store.Put("/x", nil), store.Delete("/x")}},
		{Ops: []store.Op{store.Put("", nil)}},
	} {
		if _, err := s.Txn(t.Context(), bad); err == nil {
			t.Fatalf("transaction %+v was not refused", bad)
		}
	}
}

func next(t testing.TB, w store.Watcher) store.Batch {
	t.Helper()
	for {
		b, err := w.Next(t.Context())
		if err != nil {
			t.Fatalf("next: %v", err)
		}
		if len(b.Events) > 0 {
			return b
		}
	}
}

func testWatch(t *testing.T, s store.Store) {
	first := put(t, s, "/a/1", "old")
	w, err := s.Watch(t.Context(), "/a/", first)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	put(t, s, "/b", "not watched")
	res := commit(t, s, store.Txn{Ops: []store.Op{store.Delete("/a/1"), store.Put("/a/2", []byte("new"))}})
	if b := next(t, w); b.Revision != first || len(b.Events) != 1 || string(b.Events[0].KV.Value) != "old" {
		t.Fatalf("first batch: %+v", b)
	}
	b := next(t, w)
	if b.Revision != res.Revision || len(b.Events) != 2 {
		t.Fatalf("second batch: %+v", b)
	}
	for _, ev := range b.Events {
		if ev.Deleted != (ev.KV.Key == "/a/1") || ev.KV.ModRevision != res.Revision {
			t.Fatalf("event %+v", ev)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("next with a cancelled context: %v", err)
	}
}

func testCompact(t *testing.T, s store.Store) {
	first := put(t, s, "/a", "1")
	for i := range 5 {
		put(t, s, "/a", fmt.Sprint(i))
	}
	last := put(t, s, "/b", "2")
	if err := s.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(t.Context(), first); err != nil {
		t.Fatalf("compacting what is compacted: %v", err)
	}
	w, err := s.Watch(t.Context(), "/", first)
	if err == nil {
		defer w.Close()
		_, err = w.Next(t.Context())
	}
	if !errors.Is(err, store.ErrCompacted) {
		t.Fatalf("watch from a compacted revision: %v", err)
	}
	w, err = s.Watch(t.Context(), "/", last)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if b := next(t, w); b.Revision != last {
		t.Fatalf("watch from the compaction on: %+v", b)
	}
	snap, err := s.List(t.Context(), "/")
	if err != nil || len(snap.KVs) != 2 {
		t.Fatalf("present keys after compaction: %+v %v", snap, err)
	}
}

func testRenew(t *testing.T, s store.Store) {
	lease, err := s.Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, store.Txn{Ops: []store.Op{{Key: "/leased", Lease: lease}, store.Put("/kept", nil)}})
	if err := s.Renew(t.Context(), lease); err != nil {
		t.Fatalf("renewing a lease that lasts: %v", err)
	}
	if err := s.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context(), lease); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("renewing a lease that was revoked: %v", err)
	}
	snap, err := s.List(t.Context(), "/")
	if err != nil || len(snap.KVs) != 1 || snap.KVs[0].Key != "/kept" {
		t.Errorf("after its lease was revoked: %v %v", snap, err)
	}
}

func testClose(t *testing.T, s store.Store) {
	w, err := s.Watch(t.Context(), "/", now(t, s)+1)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Next(context.Background())
		done <- err
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, store.ErrClosed) {
		t.Fatalf("next while the store closes: %v", err)
	}
	if _, err := s.Txn(t.Context(), store.Txn{}); !errors.Is(err, store.ErrClosed) {
		t.Fatalf("txn after close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("closing twice: %v", err)
	}
}

// testModel commits random transactions and checks that the watched batches, folded into a map,
// equal the result of List.
func testModel(t *testing.T, s store.Store) {
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		prefix := fmt.Sprintf("/model/%d/", round)
		start, err := s.List(t.Context(), prefix)
		if err != nil {
			rt.Fatal(err)
		}
		w, err := s.Watch(t.Context(), prefix, start.Revision+1)
		if err != nil {
			rt.Fatal(err)
		}
		defer w.Close()
		var last int64
		for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
			res, err := s.Txn(t.Context(), store.Txn{Ops: randomOps(rt, prefix)})
			if err != nil || !res.Succeeded {
				rt.Fatalf("txn: %+v %v", res, err)
			}
			last = res.Revision
		}
		end, err := s.List(t.Context(), prefix)
		if err != nil || end.Revision != last {
			rt.Fatalf("list: revision %d, want %d, %v", end.Revision, last, err)
		}
		folded := map[string]store.KV{}
		for rev := start.Revision; rev < last; {
			b, err := w.Next(t.Context())
			if err != nil || b.Revision <= rev {
				rt.Fatalf("batch %+v after %d: %v", b, rev, err)
			}
			if len(b.Events) == 0 && b.Revision > last {
				rt.Fatalf("nothing happened up to %d, but %d was the last", b.Revision, last)
			}
			rev = b.Revision
			for _, ev := range b.Events {
				if !strings.HasPrefix(ev.KV.Key, prefix) {
					rt.Fatalf("event outside the prefix: %+v", ev)
				}
				if delete(folded, ev.KV.Key); !ev.Deleted {
					folded[ev.KV.Key] = ev.KV
				}
			}
		}
		if len(folded) != len(end.KVs) {
			rt.Fatalf("folded %d keys, listed %d", len(folded), len(end.KVs))
		}
		for _, kv := range end.KVs {
			if !reflect.DeepEqual(folded[kv.Key], kv) {
				rt.Fatalf("folded %+v, listed %+v", folded[kv.Key], kv)
			}
		}
	})
}

func randomOps(rt *rapid.T, prefix string) []store.Op {
	keys := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-d]`), 1, 4, rapid.ID).Draw(rt, "keys")
	var ops []store.Op
	for _, k := range keys {
		if rapid.Bool().Draw(rt, "delete") {
			ops = append(ops, store.Delete(prefix+k))
		} else {
			ops = append(ops, store.Put(prefix+k, []byte(rapid.StringMatching(`[a-z]{1,3}`).Draw(rt, "value"))))
		}
	}
	return ops
}

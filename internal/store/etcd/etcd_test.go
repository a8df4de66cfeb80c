package etcd

import (
	"testing"

	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/store/storetest"
)

func TestEtcd(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, err := Open(t.Context(), Options{Dir: t.TempDir(), UnsafeNoFsync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	open := func() *Store {
		s, err := Open(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	res, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/a", []byte("kept"))}})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open()
	defer s.Close()
	kv, ok, _, err := s.Get(t.Context(), "/a")
	if err != nil || !ok || string(kv.Value) != "kept" || kv.ModRevision != res.Revision {
		t.Fatalf("after reopening: %+v %v %v", kv, ok, err)
	}
}

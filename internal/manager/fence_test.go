package manager_test

import (
	"testing"

	"github.com/shuntlb/shunt/internal/store"
)

// TestReplacedManagerWritesNothing gives the leadership to somebody else: from then on no write of this manager lands.
func TestReplacedManagerWritesNothing(t *testing.T) {
	s := store.NewMemory()
	r := newRig(t, s)
	r.apply(network())
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/shunt/leader", []byte{8, 9})}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.tryApply(hostNode(1)); err == nil {
		t.Error("a write was acknowledged after the leadership was lost")
	}
	snap, err := s.List(t.Context(), "/shunt/objects/")
	if err != nil || len(snap.KVs) != 1 {
		t.Errorf("objects %+v %v: must be the network alone", snap, err)
	}
}

package manager_test

import (
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// TestReplacedManagerWritesNothing gives the leadership to another manager, and checks that no
// later write of this one succeeds.
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

// TestOneManagerLeads checks the leader's metrics, also after a change of the leader.
func TestOneManagerLeads(t *testing.T) {
	ms := newMembers(t, 3, nil)
	for epoch := range int64(2) {
		lead := ms.leader(epoch + 1)
		for {
			leads := map[string]bool{}
			for _, r := range ms.rigs {
				if r.m.Status().GetLeads() {
					leads[r.name] = true
				}
			}
			if len(leads) == 1 && leads[lead.name] {
				break
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatalf("%v say that they lead, %s does", leads, lead.name)
			}
		}
		if epoch == 0 {
			ms.lapse()
		}
	}
}

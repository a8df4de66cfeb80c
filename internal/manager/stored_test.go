package manager

import (
	"testing"

	"github.com/shuntlb/shunt/internal/store"
)

// serialBatch is a write of another member.
func serialBatch(revision int64) store.Batch {
	return store.Batch{Revision: revision, Events: []store.Event{{KV: store.KV{Key: keySerial, Value: []byte("theirs"), ModRevision: revision}}}}
}

// TestDeletesOfNothingHideNoWrite: deletes of absent keys store nothing, and their answer has the
// revision of the last stored write. The view must still apply that write.
func TestDeletesOfNothingHideNoWrite(t *testing.T) {
	v, m := newView(nil), store.NewMemory()
	defer m.Close()
	snap, err := m.List(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.load(snap, 0); err != nil {
		t.Fatal(err)
	}
	theirs, err := m.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put(keySerial, []byte("theirs"))}})
	if err != nil {
		t.Fatal(err)
	}
	ours := []store.Op{store.Delete(dirTokens + "gone")}
	res, err := m.Txn(t.Context(), store.Txn{Ops: ours})
	if err != nil {
		t.Fatal(err)
	}
	if res.Revision != theirs.Revision {
		t.Fatalf("a delete of nothing is at revision %d, expected that of the write before, %d", res.Revision, theirs.Revision)
	}
	if err := v.foldStored(ours, res.Revision); err != nil {
		t.Fatal(err)
	}
	if err := v.fold(serialBatch(theirs.Revision)); err != nil {
		t.Fatal(err)
	}
	if v.serialMod != theirs.Revision {
		t.Errorf("the view has the serial of revision %d, expected %d", v.serialMod, theirs.Revision)
	}
}

// TestSnapshotOvertakenByWrites: the store is listed while this member continues to store. The
// snapshot must not undo later writes. A snapshot of a restored store must.
func TestSnapshotOvertakenByWrites(t *testing.T) {
	v := newView(nil)
	if err := v.fold(serialBatch(5)); err != nil {
		t.Fatal(err)
	}
	snap := store.Snapshot{Revision: 5, KVs: []store.KV{{Key: keySerial, Value: []byte("theirs"), ModRevision: 5}}}
	asked := v.revision()
	ops := []store.Op{store.Put(keySerial, []byte("ours")), store.Put(dirTokens+"a", nil)}
	if err := v.foldStored(ops, 6); err != nil {
		t.Fatal(err)
	}
	if err := v.load(snap, asked); err != nil {
		t.Fatal(err)
	}
	if v.rev != 6 || v.serialMod != 6 || v.tokens["a"] == nil {
		t.Errorf("after the snapshot of revision 5 the view is at %d with the serial of %d and the tokens %v: it was at 6", v.rev, v.serialMod, v.tokens)
	}
	if err := v.load(snap, v.revision()); err != nil {
		t.Fatal(err)
	}
	if v.rev != 5 || v.serialMod != 5 || v.tokens["a"] != nil {
		t.Errorf("after the snapshot of a restored store the view is at %d with the serial of %d and the tokens %v, expected 5", v.rev, v.serialMod, v.tokens)
	}
}

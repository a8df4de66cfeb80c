package etcd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/store"
)

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	open := func() *Member {
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

// TestDamagedFilesAreAnError: damaged files cause an error, neither a panic nor an endless wait.
func TestDamagedFilesAreAnError(t *testing.T) {
	for name, damage := range map[string]func(log string) error{
		"no log": os.Remove,
		"a log of zeros and noise": func(log string) error {
			return os.WriteFile(log, bytes.Repeat([]byte{0xa5, 0, 0x5a}, 4096), 0o600)
		},
	} {
		dir := t.TempDir()
		s, err := Open(t.Context(), Options{Dir: dir, UnsafeNoFsync: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/a", []byte("b"))}}); err != nil {
			t.Fatal(err)
		}
		s.Close()
		logs, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
		if err != nil || len(logs) != 1 {
			t.Fatal(logs, err)
		}
		if err := damage(logs[0]); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(t.Context(), Options{Dir: dir, UnsafeNoFsync: true}); err == nil {
			s.Close()
			t.Errorf("%s: was opened", name)
		} else if !strings.Contains(err.Error(), "restore a backup") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/manager"
)

// TestOutsideRestored: a backup is restored below the prefix of an external etcd, once, and changes
// no other key; a manager works with it.
func TestOutsideRestored(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../../cmd/shunt/testdata/cli/files/schema2.backup")
	if err != nil {
		t.Fatal(err)
	}
	a, err := backup.Decode(content)
	if err != nil {
		t.Fatal(err)
	}
	o := startServer(t, false)
	others, err := OpenOutside(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	put(t, others, "/shunt/objects/Service/theirs", "of another site")
	o.Prefix = "/site1"
	s, err := OpenOutside(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	path := filepath.Join(t.TempDir(), "data")
	restore := func(path string) error {
		return manager.BuildDataDir(path, func(dir *manager.DataDir) error {
			_, err := manager.Restore(t.Context(), manager.Restoring{Dir: dir, Store: s, Name: "m1", By: "ann", Now: time.Now()}, a)
			return err
		})
	}
	if err := restore(path); err != nil {
		t.Fatal(err)
	}
	if err := restore(filepath.Join(t.TempDir(), "data")); !errors.Is(err, manager.ErrUsedStore) {
		t.Errorf("once more: %v", err)
	}
	dir, err := manager.OpenDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	m, err := manager.Open(t.Context(), manager.Options{Dir: dir, Store: s, Name: "m1", Listen: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Epoch() <= a.Header.Epoch+1 {
		t.Errorf("epoch %d: must be far beyond the backup's %d", m.Epoch(), a.Header.Epoch)
	}
	if got := value(t, others, "/shunt/objects/Service/theirs"); got != "of another site" {
		t.Errorf("what is of others: %q", got)
	}
	if got := value(t, others, "/site1/shunt/objects/Service/web"); got == "" {
		t.Error("the service is not there")
	}
}

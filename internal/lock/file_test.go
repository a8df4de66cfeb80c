package lock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFile: a second process is refused, also after the file or its directory was removed and the
// first process called Tend.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shunt", "run", "agent.lock")
	own, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		want := fmt.Sprintf("lock %s: another process holds it (process %d)", path, os.Getpid())
		if _, err := Take(path); !errors.Is(err, ErrTaken) || err.Error() != want {
			t.Errorf("%s: error %v, want %s", when, err, want)
		}
	}
	refused("at first")
	if restored, err := own.Tend(); restored || err != nil {
		t.Errorf("nothing happened: restored %v, %v", restored, err)
	}
	for when, remove := range map[string]func() error{
		"the file was removed":      func() error { return os.Remove(path) },
		"the directory was removed": func() error { return os.RemoveAll(filepath.Dir(path)) },
		"that above it was removed": func() error { return os.RemoveAll(filepath.Dir(filepath.Dir(path))) },
		"another file took its place": func() error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte("1"), 0o600))
		},
	} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if restored, err := own.Tend(); !restored || err != nil {
			t.Errorf("%s: restored %v, %v", when, restored, err)
		}
		refused(when)
		for dir, mode := range map[string]os.FileMode{filepath.Dir(path): 0o700, filepath.Dir(filepath.Dir(path)): 0o755} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %s has mode %v, %v; want %v", when, dir, info.Mode(), err, mode)
			}
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if restored, err := own.Tend(); restored || !errors.Is(err, ErrTaken) {
		t.Errorf("another process took it meanwhile: restored %v, %v", restored, err)
	}
	second.Close()
	if restored, err := own.Tend(); !restored || err != nil {
		t.Errorf("and let go of it: restored %v, %v", restored, err)
	}
	own.Close()
	third, err := Take(path)
	if err != nil {
		t.Fatalf("after the end: %v", err)
	}
	third.Close()
}

// TestFullDisk: a lock works without space for the process id.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4096"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "agent.lock")
	own, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := Take(path); !errors.Is(err, ErrTaken) || !strings.HasSuffix(err.Error(), "another process holds it") {
		t.Errorf("a second one: %v", err)
	}
}

package lock

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/netdev"
)

// in runs f in a network namespace.
func in(t *testing.T, name string, f func() error) {
	t.Helper()
	if err := netdev.In(name, f); err != nil {
		t.Error(err)
	}
}

func newNamespace(t *testing.T, suffix string) string {
	t.Helper()
	name := fmt.Sprintf("lock-%d-%s", os.Getpid(), suffix)
	if err := netdev.CreateNamespace(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netdev.DeleteNamespace(name) })
	return name
}

// TestOneAgentPerNamespace: a second agent of a role is refused with the process that holds the
// lock; one of another role or namespace is not.
func TestOneAgentPerNamespace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	first, second := newNamespace(t, "a"), newNamespace(t, "b")
	lock := func(role string) *File {
		t.Helper()
		held, err := namespace(dir, role)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	in(t, first, func() error {
		held := lock("mux")
		refused := func(when string) {
			t.Helper()
			_, err := namespace(dir, "mux")
			if want := fmt.Sprintf("another mux agent (process %d) runs", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a second one%s: error %v, expected %q", when, err, want)
			}
		}
		refused("")
		lock("host").Close()
		in(t, second, func() error {
			lock("mux").Close()
			return nil
		})
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if restored, err := held.Tend(); !restored || err != nil {
			t.Errorf("the directory was removed: restored %v, %v", restored, err)
		}
		refused(" after the directory was removed")
		held.Close()
		lock("mux").Close()
		return nil
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files left: %v, error %v", left, err)
	}
}

// TestAbstractSocketsHinderNoAgent: an abstract socket with the lock name of earlier builds, which
// any local user can bind, does not stop an agent.
func TestAbstractSocketsHinderNoAgent(t *testing.T) {
	in(t, newNamespace(t, "c"), func() error {
		l, err := net.Listen("unix", "@shunt-mux")
		if err != nil {
			return err
		}
		defer l.Close()
		held, err := Namespace("mux")
		if err == nil {
			held.Close()
		}
		return err
	})
}

// TestDirectoryOfOthersIsRefused: no lock is taken in a directory that other users can access.
func TestDirectoryOfOthersIsRefused(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"must be 0700": func(dir string) error {
			if err := os.Mkdir(dir, 0o700); err != nil {
				return err
			}
			return os.Chmod(dir, 0o777)
		},
		"must be user": func(dir string) error {
			if err := os.Mkdir(dir, 0o700); err != nil {
				return err
			}
			return os.Chown(dir, 65534, 65534)
		},
		"must be a directory": func(dir string) error { return os.Symlink(t.TempDir(), dir) },
	} {
		dir := filepath.Join(t.TempDir(), "locks")
		if err := make(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := namespace(dir, "mux"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, expected %q", err, name)
		}
	}
}

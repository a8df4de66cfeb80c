package manager_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/store"
)

// TestMissingSecretsAreNotMadeAnew checks that missing secrets are not replaced, because new ones
// with an old store would lock out every node.
func TestMissingSecretsAreNotMadeAnew(t *testing.T) {
	for _, file := range []string{"pki/ca.crt", "pki/ca.key", "pki/store.key"} {
		s := store.NewMemory()
		r := newRig(t, s)
		r.stop()
		path := filepath.Join(r.path, file)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		dir, err := manager.OpenDataDir(r.path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		_, err = manager.Open(t.Context(), manager.Options{Dir: dir, Store: s, Name: "m1", Listen: r.addr})
		if err == nil || !strings.Contains(err.Error(), path+": is missing: restore it") {
			t.Errorf("without %s: %v", file, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s was made anew", file)
		}
	}
}

// TestAdminConfigFollowsTheAddress checks that the administrator's file is valid after a change of
// the address.
func TestAdminConfigFollowsTheAddress(t *testing.T) {
	r := newRig(t, store.NewMemory())
	old := r.addr
	r.stop()
	r.addr = ""
	r.start()
	content, err := os.ReadFile(filepath.Join(r.path, "admin.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if old == r.addr {
		t.Fatal("the address must have changed")
	}
	if text := string(content); !strings.Contains(text, "\nserver: https://"+r.addr+"\n") || strings.Contains(text, old) {
		t.Errorf("admin.yaml has %q: must have %s alone", text[:120], r.addr)
	}
	r.apply(network())
}

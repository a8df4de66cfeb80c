package manager_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// TestSchemaOneIsMigrated: testdata/schema1.json is what a manager of schema 1 (v0.3.0, commit eef112e) left after two starts and a
// backend that was replaced. The epoch goes on, objects and member ids stay, and the ring key can be opened.
func TestSchemaOneIsMigrated(t *testing.T) {
	text, err := os.ReadFile("testdata/schema1.json")
	if err != nil {
		t.Fatal(err)
	}
	var left struct {
		Secrets map[string][]byte
		Keys    []struct {
			Name  string
			Value []byte
		}
	}
	if err := json.Unmarshal(text, &left); err != nil {
		t.Fatal(err)
	}
	s, path := store.NewMemory(), t.TempDir()
	var txn store.Txn
	for _, k := range left.Keys {
		txn.Ops = append(txn.Ops, store.Put(k.Name, k.Value))
	}
	if _, err := s.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(path, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, secret := range map[string]string{"ca.crt": "ca", "ca.key": "ca_key", "store.key": "store_key"} {
		if err := os.WriteFile(filepath.Join(path, "pki", file), left.Secrets[secret], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	same := []string{"/shunt/objects/", "/shunt/endpoints/", "/shunt/keys/"}
	before := content(t, s, same...)
	r := &rig{t: t, store: s, name: "m1", path: path}
	r.start()
	defer func() { r.stop() }()
	sameContent(t, content(t, s, same...), before)
	if epoch := r.m.Epoch(); epoch != 3 {
		t.Errorf("epoch %d: must be 3, after the 2 of schema 1", epoch)
	}
	if schema := content(t, s, "/shunt/schema")["/shunt/schema"]; schema != "2" {
		t.Errorf("schema %s: must be 2", schema)
	}
	mux := r.join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool {
		return len(p.Endpoints) == 1 && len(p.Endpoints[0].Members) == 1 && p.Endpoints[0].Members[0].DIP.String() == "10.20.1.12" && len(p.RingKeys) == 1
	})
}

// said is a log that tells of one line.
type said struct {
	io.Writer
	what string
	line chan string
}

func (s said) Write(b []byte) (int, error) {
	if strings.Contains(string(b), s.what) {
		s.line <- string(b)
	}
	return len(b), nil
}

// TestSchemaIsRaisedWhenNobodyNeedsTheFormer: while a manager of the former version is up, one of the new version takes no leadership
// from it, leads when it may, and keeps the former schema; then it raises it, and a manager of the former version refuses the
// store.
func TestSchemaIsRaisedWhenNobodyNeedsTheFormer(t *testing.T) {
	s := store.NewMemory()
	r := newRig(t, s)
	r.apply(network())
	now := func() string { return content(t, s, "/shunt/schema")["/shunt/schema"] }
	present, err := proto.Marshal(&apiv1.StoredManager{Name: "m3", Schema: manager.Schema, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/shunt/managers/m3", present)}}); err != nil {
		t.Fatal(err)
	}
	// A further member has the secrets of the cluster.
	path := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(filepath.Join(path, "pki"), os.DirFS(filepath.Join(r.path, "pki"))); err != nil {
		t.Fatal(err)
	}
	dir, err := manager.OpenDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	keeps := said{what: "keeps the former schema", line: make(chan string, 10)}
	newer, err := manager.Open(t.Context(), manager.Options{
		Dir: dir, Store: s, Name: "m2", Listen: "127.0.0.1:1", Log: slog.New(slog.NewTextHandler(keeps, nil)), Schema: manager.Schema + 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Close()
	if newer.Epoch() != 1 {
		t.Errorf("epoch %d: a manager of a new version took the leadership from one that leads", newer.Epoch())
	}
	r.stop()
	if line := <-keeps.line; now() != "2" || !strings.Contains(line, "m3 of version v1") {
		t.Errorf("schema %s though m3 is up: %s", now(), line)
	}
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Delete("/shunt/managers/m3")}}); err != nil {
		t.Fatal(err)
	}
	for now() != "3" {
		<-time.After(10 * time.Millisecond)
	}
	old, err := manager.OpenDataDir(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	_, err = manager.Open(t.Context(), manager.Options{Dir: old, Store: s, Name: "m1", Listen: r.addr})
	if err == nil || !strings.Contains(err.Error(), "this one is too old for it") {
		t.Errorf("a manager of the former version: %v", err)
	}
}

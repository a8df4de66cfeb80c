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

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// lasting returns the stored endpoints without the parts that an upgrade changes: an upgrade adds
// the members' hosts, and deletes memberships without an end time in schema 1.
func lasting(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	out := content(t, s, "/shunt/endpoints/")
	for key, value := range out {
		var e apiv1.StoredEndpoint
		if err := proto.Unmarshal([]byte(value), &e); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		e.History = nil
		for _, m := range e.GetMembers() {
			m.Host = ""
		}
		out[key] = protojson.Format(&e)
	}
	return out
}

// TestSchemaOneIsMigrated: testdata/schema1.json is the store of a manager of schema 1 (v0.3.0,
// commit eef112e) after two starts and a replaced backend. The epoch continues, objects and member
// ids are kept, and the ring key can be decrypted. In the file the replaced backend's id is in
// quarantine for a day. The test sets the rest to one hour, whenever it runs.
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
	quarantined := 0
	for _, k := range left.Keys {
		if strings.HasPrefix(k.Name, "/shunt/endpoints/") {
			var e apiv1.StoredEndpoint
			if err := proto.Unmarshal(k.Value, &e); err != nil {
				t.Fatalf("%s: %v", k.Name, err)
			}
			for _, q := range e.GetQuarantine() {
				q.Until, quarantined = timestamppb.New(time.Now().Add(time.Hour)), quarantined+1
			}
			if k.Value, err = proto.Marshal(&e); err != nil {
				t.Fatal(err)
			}
		}
		txn.Ops = append(txn.Ops, store.Put(k.Name, k.Value))
	}
	if quarantined != 1 {
		t.Fatalf("%d ids are in quarantine in the fixture, want 1", quarantined)
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
	same := []string{"/shunt/objects/", "/shunt/keys/"}
	before, endpoints := content(t, s, same...), lasting(t, s)
	r := &rig{t: t, store: s, name: "m1", path: path}
	r.start()
	defer func() { r.stop() }()
	sameContent(t, content(t, s, same...), before)
	sameContent(t, lasting(t, s), endpoints)
	if epoch := r.m.Epoch(); epoch != 3 {
		t.Errorf("epoch %d: must be 3, after the 2 of schema 1", epoch)
	}
	if schema := content(t, s, "/shunt/schema")["/shunt/schema"]; schema != "3" {
		t.Errorf("schema %s: must be 3", schema)
	}
	mux := r.join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool {
		return len(p.Endpoints) == 1 && len(p.Endpoints[0].Members) == 1 && p.Endpoints[0].Members[0].DIP.String() == "10.20.1.12" && len(p.RingKeys) == 1
	})
}

// said is a log that reports one line.
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

// TestSchemaIsRaisedWhenNobodyNeedsTheFormer: while a manager of the previous version is up, one of
// the new version does not take the leadership from it, leads when it can, and keeps the previous
// schema. Afterwards it raises the schema, and a manager of the previous version refuses the store.
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
	if line := <-keeps.line; now() != "3" || !strings.Contains(line, "m3 of version v1") {
		t.Errorf("schema %s though m3 is up: %s", now(), line)
	}
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Delete("/shunt/managers/m3")}}); err != nil {
		t.Fatal(err)
	}
	for now() != "4" {
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

// TestFieldsOfASchemaWaitForIt: while a manager is up that does not support the kinds of checks,
// services that use one are refused, by a dry run too, and all other requests succeed. Once that
// manager is gone, the services are accepted.
func TestFieldsOfASchemaWaitForIt(t *testing.T) {
	s := store.NewMemory()
	r := newRig(t, s)
	r.apply(network())
	r.stop()
	former, err := proto.Marshal(&apiv1.StoredManager{Name: "m2", Schema: 2, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/shunt/managers/m2", former), store.Put("/shunt/schema", []byte("2"))}}); err != nil {
		t.Fatal(err)
	}
	r.start()
	with := func(h *apiv1.Health) *apiv1.Object {
		return service(func(svc *apiv1.Service) { svc.Endpoints[0].Health, svc.Endpoints[0].RepairWindow = h, nil })
	}
	apply := func(h *apiv1.Health, dry bool) error {
		_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{with(h)}, DryRun: dry}))
		return err
	}
	const waits = ": needs schema 3 of the state, which has 2 until every manager is of a version that knows it: m2 of version v1 does not"
	newer := []struct {
		health *apiv1.Health
		first  string
		more   bool
	}{
		{&apiv1.Health{Icmp: &apiv1.ICMPCheck{}}, "icmp", false},
		{&apiv1.Health{Tcp: &apiv1.TCPCheck{Send: "a", Expect: "b"}}, "tcp.expect", true},
		{&apiv1.Health{Http: &apiv1.HTTPCheck{Path: "/", Method: "HEAD"}, Through: "tunnel"}, "http.method", true},
		{&apiv1.Health{Checks: []*apiv1.Check{{Tcp: &apiv1.TCPCheck{}}, {Icmp: &apiv1.ICMPCheck{}}}}, "checks", false},
		{&apiv1.Health{Tcp: &apiv1.TCPCheck{}, PanicBelow: 30, Damping: &apiv1.Damping{}}, "damping", true},
	}
	for _, c := range newer {
		for _, dry := range []bool{true, false} {
			err := apply(c.health, dry)
			want := "services/web: endpoints[0].health." + c.first + waits
			if c.more {
				want += " (and 1 more)"
			}
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%v, dry %v: %v: must end with %q", c.health, dry, err, want)
			}
		}
	}
	for field, f := range map[string]func(*apiv1.Endpoint){
		"repairWindow": func(ep *apiv1.Endpoint) { ep.RepairWindow = durationpb.New(0) },
		// Only the values are new: the fields are old.
		"affinity: cookie":       func(ep *apiv1.Endpoint) { ep.Affinity, ep.Cookie = "cookie", nil },
		"scheduler: round-robin": func(ep *apiv1.Endpoint) { ep.Scheduler = "round-robin" },
		"protocol: quic":         func(ep *apiv1.Endpoint) { ep.Protocol, ep.Affinity = "quic", "flow" },
		"load":                   func(ep *apiv1.Endpoint) { ep.Load = &apiv1.Load{Http: &apiv1.LoadHTTP{}} },
		"hostIdle":               func(ep *apiv1.Endpoint) { ep.HostIdle = &apiv1.HostIdle{Closing: durationpb.New(time.Minute)} },
	} {
		o := with(&apiv1.Health{Tcp: &apiv1.TCPCheck{}})
		f(o.GetService().Endpoints[0])
		_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{o}}))
		if want := "services/web: endpoints[0]." + field + waits; err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v: must end with %q", field, err, want)
		}
	}
	if left := content(t, s, "/shunt/objects/services/"); len(left) > 0 {
		t.Errorf("refused, but stored: %v", left)
	}
	if err := apply(&apiv1.Health{Http: &apiv1.HTTPCheck{Path: "/old", Host: "h"}, Rise: 4, From: "host"}, false); err != nil {
		t.Errorf("what schema 2 has: %v", err)
	}
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Delete("/shunt/managers/m2")}}); err != nil {
		t.Fatal(err)
	}
	for content(t, s, "/shunt/schema")["/shunt/schema"] != "3" {
		<-time.After(10 * time.Millisecond)
	}
	for _, c := range newer {
		if err := apply(c.health, false); err != nil {
			t.Errorf("%v after the schema was raised: %v", c.health, err)
		}
	}
}

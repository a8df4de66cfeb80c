package manager_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// download reads a backup from a manager.
func download(t *testing.T, c shuntv1connect.ManagerClient) ([]byte, error) {
	t.Helper()
	stream, err := c.Backup(t.Context(), connect.NewRequest(&apiv1.BackupRequest{}))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var b bytes.Buffer
	for stream.Receive() {
		b.Write(stream.Msg().GetChunk())
	}
	return b.Bytes(), stream.Err()
}

func (r *rig) backup() *backup.Archive {
	r.t.Helper()
	content, err := download(r.t, r.admin)
	if err != nil {
		r.t.Fatal(err)
	}
	a, err := backup.Decode(content)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := manager.CheckBackup(a); err != nil {
		r.t.Fatal(err)
	}
	return a
}

// restore stops the manager, discards its directory and store, and starts one from the backup at
// the same address.
func (r *rig) restore(a *backup.Archive) {
	r.t.Helper()
	r.stop()
	r.path, r.store = filepath.Join(r.t.TempDir(), "data"), store.NewMemory()
	err := manager.BuildDataDir(r.path, func(dir *manager.DataDir) error {
		_, err := manager.Restore(r.t.Context(), manager.Restoring{
			Dir: dir, Store: r.store, Name: r.name, By: "ann", From: "laptop", Source: "file x", Now: time.Now(),
		}, a)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.start()
}

// content returns the keys and values of a store under these directories and keys.
func content(t *testing.T, s store.Store, prefixes ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, prefix := range prefixes {
		snap, err := s.List(t.Context(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range snap.KVs {
			out[kv.Key] = string(kv.Value)
		}
	}
	return out
}

// archived returns the keys and values of an archive under these directories and keys.
func archived(a *backup.Archive, prefixes ...string) map[string]string {
	out := map[string]string{}
	for _, k := range a.Keys {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(k.Name, p) }) {
			out[k.Name] = string(k.Value)
		}
	}
	return out
}

// kept lists the directories that a restore reproduces exactly.
var kept = []string{"/shunt/objects/", "/shunt/endpoints/", "/shunt/keys/", "/shunt/tokens/", "/shunt/access/", "/shunt/revoked/", "/shunt/placement/"}

func sameContent(t *testing.T, got, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s: %q: must be %q", key, got[key], value)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("%s: must not be there", key)
		}
	}
}

// TestBackupRoundTrip checks that each backup made while backends are added and removed is the
// state at one revision, and that a restore reproduces it: objects, member ids, ring keys and
// tokens.
func TestBackupRoundTrip(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network(), hostNode(1), hostNode(2), hostNode(3), muxNode(1), web(1))
	r.token("host9", "host")
	if _, err := r.admin.CreateAccess(t.Context(), connect.NewRequest(&apiv1.CreateAccessRequest{Name: "ci", Role: "viewer"})); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	begun := make(chan struct{}, 1)
	writer.Go(func() {
		random := rand.New(rand.NewPCG(seed, 0))
		for ctx.Err() == nil {
			some := []int{1, 2, 3}
			random.Shuffle(3, func(i, j int) { some[i], some[j] = some[j], some[i] })
			// Two objects of one write: a snapshot has both or neither.
			hosts := some[:1+random.IntN(3)]
			other := web(hosts...)
			other.Name, other.VIPs[0] = "web2", other.VIPs[0].Next()
			if _, err := r.tryApply(web(hosts...), other); err != nil {
				t.Error(err)
			}
			notify.Send(begun)
		}
	})
	for range 3 {
		<-begun
		a := r.backup()
		mem, dir := store.NewMemory(), filepath.Join(t.TempDir(), "data")
		if err := manager.BuildDataDir(dir, func(d *manager.DataDir) error {
			_, err := manager.Restore(t.Context(), manager.Restoring{Dir: d, Store: mem, Name: "m1", Now: time.Now()}, a)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		sameContent(t, content(t, mem, kept...), archived(a, kept...))
		web1, web2 := &apiv1.Object{}, &apiv1.Object{}
		for _, k := range a.Keys {
			for name, into := range map[string]*apiv1.Object{"/shunt/objects/Service/web": web1, "/shunt/objects/Service/web2": web2} {
				if k.Name == name {
					if err := proto.Unmarshal(k.Value, into); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if len(web1.GetService().GetEndpoints()[0].GetBackends()) != len(web2.GetService().GetEndpoints()[0].GetBackends()) {
			t.Errorf("one write is there by half: %v and %v", web1, web2)
		}
	}
	cancel()
	writer.Wait()
	last := r.backup()
	r.restore(last)
	sameContent(t, content(t, r.store, kept...), archived(last, kept...))
	r.apply(web(1)) // it works
}

// TestNodesFollowARestoredCluster checks a node that applied later revisions and a later epoch than
// the backup's. It takes the plan of the restored state, with the same member ids and ring keys,
// and is not reported as up to date before that.
func TestNodesFollowARestoredCluster(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), muxNode(2), web(1, 2))
	mux := r.join("mux1", "mux")
	before := mux.until("the service", func(p plan.Plan) bool { return len(p.Endpoints) == 1 && len(p.Endpoints[0].Members) == 2 })
	a := r.backup()
	r.stop()
	r.start()
	late := r.apply(web(2)).GetRevision()
	for range 10 {
		r.apply(web(1))
		late = r.apply(web(2)).GetRevision()
	}
	former := mux.until("what is lost", func(p plan.Plan) bool { return p.Revision == late })
	if former.Epoch <= a.Header.Epoch || late <= a.Header.Revision {
		t.Fatalf("epoch %d and revision %d: must be later than the backup's", former.Epoch, late)
	}
	r.restore(a)
	after := mux.until("the restored state", func(p plan.Plan) bool { return p.Epoch > former.Epoch })
	if after.Revision >= late {
		t.Errorf("revision %d: must be less than %d, or the test shows nothing", after.Revision, late)
	}
	if !reflect.DeepEqual(after.Endpoints, before.Endpoints) || !reflect.DeepEqual(after.RingKeys, before.RingKeys) {
		t.Errorf("%+v: must be %+v", after, before)
	}
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.SyncedRevision == after.Revision })
	stuck := r.rawAt("mux2", "mux", former.Epoch, late)
	if err := stuck.Send(&apiv1.NodeReport{SyncedRevision: late, Epoch: former.Epoch}); err != nil {
		t.Fatal(err)
	}
	if st := r.status("mux2", func(st *apiv1.NodeStatus) bool { return st.Connected }); st.SyncedRevision != 0 {
		t.Errorf("a mux that obeys revision %d of the former store: said to obey %d", late, st.SyncedRevision)
	}
}

// TestRestoredIsTold checks that the audit log and events record the restore and its author, and
// that earlier entries keep their revisions.
func TestRestoredIsTold(t *testing.T) {
	r := newRig(t, nil)
	want := r.apply(network()).GetRevision()
	r.apply(hostNode(1))
	r.restore(r.backup())
	res, err := r.admin.Audit(t.Context(), connect.NewRequest(&apiv1.AuditRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	var restored, applied bool
	for _, e := range res.Msg.GetEntries() {
		switch {
		case e.GetCall() == "Restore":
			restored = e.GetWho() == "ann" && e.GetFrom() == "laptop" && strings.Contains(e.GetWhat()[0], "file x")
		case e.GetCall() == "Apply" && e.GetWhat()[0] == "networks/main created":
			applied = e.GetRevision() == want
		}
	}
	if !restored || !applied {
		t.Errorf("restored told %t, former entry told with revision %d %t: %v", restored, want, applied, res.Msg)
	}
	stream, err := r.admin.Events(t.Context(), connect.NewRequest(&apiv1.EventsRequest{Kind: "Manager"}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	told := false
	for stream.Receive() {
		for _, e := range stream.Msg().GetEvents() {
			told = told || e.GetReason() == "Restored" && strings.Contains(e.GetMessage(), "restored by ann")
		}
	}
	if err := stream.Err(); err != nil || !told {
		t.Errorf("event told %t, %v", told, err)
	}
}

// TestUnreadBackup checks that a backup whose caller does not read delays the next one for half a
// minute at most, and that none is refused.
func TestUnreadBackup(t *testing.T) {
	fake := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), fake)
	for i := range 8 { // more than a stream's window holds
		p := &lb.Policy{Name: fmt.Sprintf("p%d", i), Sources: &lb.Sources{Deny: manyPrefixes(50_000)}}
		lb.SetDefaults(p)
		r.apply(p)
	}
	unread, err := r.admin.Backup(t.Context(), connect.NewRequest(&apiv1.BackupRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	if !unread.Receive() {
		t.Fatal(unread.Err())
	}
	next := make(chan error, 1)
	go func() {
		_, err := download(t, r.admin)
		next <- err
	}()
	for waits := true; waits; {
		select {
		case err = <-next:
			waits = false
		// slow enough for a message of the next one to be read in time
		case <-time.After(5 * time.Millisecond):
			fake.Advance(100 * time.Millisecond)
		}
	}
	if err != nil {
		t.Errorf("the next backup: %v", err)
	}
	for unread.Receive() {
	}
	if unread.Err() == nil {
		t.Error("the one that was not read came to its end")
	}
}

// TestRestoreIntoAnEmptyDirectory checks that an existing data directory is accepted if it is empty
// at the end.
func TestRestoreIntoAnEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := manager.BuildDataDir(dir, func(*manager.DataDir) error { return nil }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pki")); err != nil {
		t.Error(err)
	}
	dir = t.TempDir()
	err := manager.BuildDataDir(dir, func(*manager.DataDir) error { return os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600) })
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a file came meanwhile: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".*.restore-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// TestRestoreThroughLinks checks that a data directory may be behind a symbolic link.
func TestRestoreThroughLinks(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	built := 0
	build := func(*manager.DataDir) error { built++; return nil }
	if err := manager.BuildDataDir(link, build); err == nil || !strings.Contains(err.Error(), "leads nowhere") || built != 0 {
		t.Errorf("to nowhere: %v, built %d times", err, built)
	}
	if err := os.Mkdir(real, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := manager.BuildDataDir(link+"/", build); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(real, "pki")); err != nil {
		t.Error(err)
	}
}

// TestBackupIsForAdmins checks that only admins get a backup, and that the audit log records
// refusals and backups.
func TestBackupIsForAdmins(t *testing.T) {
	r := newRig(t, nil)
	r.apply(&lb.Tenant{Name: "shop"})
	for role, tenant := range map[string]string{pki.RoleViewer: "", pki.RoleTenant: "shop"} {
		c := r.bearer(r.access("p", role, tenant, time.Hour).GetToken())
		if _, err := download(t, c); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s: %v", role, err)
		}
	}
	r.backup()
	refused, made := 0, 0
	for refused < 2 || made < 1 {
		refused, made = 0, 0
		res, err := r.admin.Audit(t.Context(), connect.NewRequest(&apiv1.AuditRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res.Msg.GetEntries() {
			switch {
			case e.GetCall() == "Backup" && e.GetRefused() != "":
				refused++
			case e.GetCall() == "Backup" && e.GetWho() == "admin":
				made++
			}
		}
	}
}

// TestRestoreRefuses checks that a directory or store that is not empty stays unchanged, and that a
// failed restore leaves nothing.
func TestRestoreRefuses(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network())
	whole := r.backup()
	spoilt := func(spoil func(*backup.Archive)) *backup.Archive {
		a := *whole
		a.Keys = slices.Clone(whole.Keys)
		spoil(&a)
		return &a
	}
	other, err := pki.NewCA("other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := other.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		a    *backup.Archive
		want string
	}{
		"a later schema":   {spoilt(func(a *backup.Archive) { a.Header.Schema = "4" }), `schema "4": must be 3 or 2`},
		"another CA":       {spoilt(func(a *backup.Archive) { a.Secrets.CA, a.Secrets.CAKey = other.CertPEM(), otherKey }), "belongs to another CA"},
		"another key":      {spoilt(func(a *backup.Archive) { a.Secrets.CAKey = otherKey }), "CA"},
		"another seal":     {spoilt(func(a *backup.Archive) { a.Secrets.StoreKey = make([]byte, 32) }), "sealed with another key"},
		"a short seal":     {spoilt(func(a *backup.Archive) { a.Secrets.StoreKey = nil }), "store key: 0 bytes"},
		"a strange object": {spoilt(func(a *backup.Archive) { a.Keys[len(a.Keys)-1].Name = "/other/x" }), "must be below /shunt/"},
		"no epoch": {spoilt(func(a *backup.Archive) {
			a.Keys = slices.DeleteFunc(a.Keys, func(k backup.Key) bool { return k.Name == "/shunt/epoch" })
		}), "/shunt/epoch: is missing"},
	} {
		parent := t.TempDir()
		mem := store.NewMemory()
		err := manager.BuildDataDir(filepath.Join(parent, "data"), func(d *manager.DataDir) error {
			_, err := manager.Restore(t.Context(), manager.Restoring{Dir: d, Store: mem, Name: "m1", Now: time.Now()}, c.a)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v: must say %q", name, err, c.want)
		}
		if entries, err := os.ReadDir(parent); err != nil || len(entries) > 0 {
			t.Errorf("%s: left %v, %v", name, entries, err)
		}
		if left := content(t, mem, "/"); len(left) > 0 {
			t.Errorf("%s: left %v in the store", name, left)
		}
	}
	err = manager.BuildDataDir(r.path, func(*manager.DataDir) error { t.Error("it is built"); return nil })
	if !errors.Is(err, manager.ErrUsedDir) {
		t.Errorf("a used directory: %v", err)
	}
	before := content(t, r.store, "/")
	err = manager.BuildDataDir(filepath.Join(t.TempDir(), "data"), func(d *manager.DataDir) error {
		_, err := manager.Restore(t.Context(), manager.Restoring{Dir: d, Store: r.store, Name: "m1", Now: time.Now()}, whole)
		return err
	})
	if !errors.Is(err, manager.ErrUsedStore) {
		t.Errorf("a used store: %v", err)
	}
	sameContent(t, content(t, r.store, "/shunt/objects/"), onlyObjects(before))
}

func onlyObjects(all map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range all {
		if strings.HasPrefix(key, "/shunt/objects/") {
			out[key] = value
		}
	}
	return out
}

// brokenStore fails after a number of transactions.
type brokenStore struct {
	store.Store
	left int
}

func (b *brokenStore) Txn(ctx context.Context, t store.Txn) (store.TxnResult, error) {
	if b.left--; b.left < 0 {
		return store.TxnResult{}, io.ErrUnexpectedEOF
	}
	return b.Store.Txn(ctx, t)
}

// TestHalfARestoreStartsNobody checks that an interrupted restore leaves neither a directory nor a
// store that a manager starts with.
func TestHalfARestoreStartsNobody(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network())
	whole := r.backup()
	mem, parent := store.NewMemory(), t.TempDir()
	var kept string
	err := manager.BuildDataDir(filepath.Join(parent, "data"), func(d *manager.DataDir) error {
		_, err := manager.Restore(t.Context(), manager.Restoring{Dir: d, Store: &brokenStore{mem, 1}, Name: "m1", Now: time.Now()}, whole)
		// The directory as kill -9 would leave it.
		dirs, _ := os.ReadDir(parent)
		kept = filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(kept, os.DirFS(filepath.Join(parent, dirs[0].Name()))); err != nil {
			t.Fatal(err)
		}
		return err
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	if _, err := manager.OpenDataDir(kept); err == nil || !strings.Contains(err.Error(), "a restore of it broke off") {
		t.Errorf("the directory opens: %v", err)
	}
	dir, err := manager.OpenDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := manager.Open(t.Context(), manager.Options{Dir: dir, Store: mem, Name: "m1", Listen: loopback()}); err == nil {
		t.Error("a manager works with half of the state")
	}
	_, err = manager.Restore(t.Context(), manager.Restoring{Dir: dir, Store: mem, Name: "m1", Now: time.Now()}, whole)
	if !errors.Is(err, manager.ErrUsedStore) {
		t.Errorf("a second restore over half of one: %v", err)
	}
}

// TestRestoreOfTheFormerSchema checks that a backup made before the last manager was upgraded is
// restored unchanged. The first manager that starts with it raises the schema.
func TestRestoreOfTheFormerSchema(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network())
	a := r.backup()
	a.Header.Schema = "2"
	for i := range a.Keys {
		if a.Keys[i].Name == "/shunt/schema" {
			a.Keys[i].Value = []byte("2")
		}
	}
	mem := store.NewMemory()
	err := manager.BuildDataDir(filepath.Join(t.TempDir(), "data"), func(d *manager.DataDir) error {
		_, err := manager.Restore(t.Context(), manager.Restoring{Dir: d, Store: mem, Name: "m1", Now: time.Now()}, a)
		return err
	})
	if schema := content(t, mem, "/shunt/schema")["/shunt/schema"]; err != nil || schema != "2" {
		t.Errorf("schema %q, %v: must be 2, as in the backup", schema, err)
	}
}

package manager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// members are several managers on one store.
type members struct {
	t     *testing.T
	store *store.Memory
	rigs  []*rig
}

// newMembers starts m1, m2, … with the secrets of one cluster. wrap returns the store that member i
// uses; nil means the store itself.
func newMembers(t *testing.T, n int, wrap func(i int, s store.Store) store.Store) *members {
	t.Helper()
	return newMembersAt(t, n, nil, wrap)
}

// newMembersAt starts them with a clock.
func newMembersAt(t *testing.T, n int, c clock.Clock, wrap func(i int, s store.Store) store.Store) *members {
	t.Helper()
	ms := &members{t: t, store: store.NewMemory()}
	for i := range n {
		r := &rig{t: t, store: ms.store, name: fmt.Sprintf("m%d", i+1), path: t.TempDir(), clock: c}
		if wrap != nil {
			r.store = wrap(i, ms.store)
		}
		if i > 0 {
			copySecrets(t, ms.rigs[0].path, r.path)
		}
		r.start()
		t.Cleanup(func() { r.stop() })
		ms.rigs = append(ms.rigs, r)
	}
	return ms
}

// copySecrets makes a data directory one of the same cluster.
func copySecrets(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(to, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"ca.crt", "ca.key", "store.key"} {
		content, err := os.ReadFile(filepath.Join(from, "pki", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, "pki", file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// stored returns the leader key, or nil if no manager leads.
func (ms *members) stored() *apiv1.StoredLeader {
	ms.t.Helper()
	kv, ok, _, err := ms.store.Get(ms.t.Context(), "/shunt/leader")
	if err != nil {
		ms.t.Fatal(err)
	}
	if !ok {
		return nil
	}
	out := &apiv1.StoredLeader{}
	if err := proto.Unmarshal(kv.Value, out); err != nil {
		ms.t.Fatal(err)
	}
	return out
}

// leader waits until a manager leads with at least the epoch.
func (ms *members) leader(epoch int64) *rig {
	ms.t.Helper()
	w, err := ms.store.Watch(ms.t.Context(), "/shunt/leader", 1)
	if err != nil {
		ms.t.Fatal(err)
	}
	defer w.Close()
	for {
		if l := ms.stored(); l.GetEpoch() >= epoch {
			for _, r := range ms.rigs {
				if r.name == l.GetName() {
					return r
				}
			}
			ms.t.Fatalf("%s leads: must be one of the members", l.GetName())
		}
		if _, err := w.Next(ms.t.Context()); err != nil {
			ms.t.Fatal(err)
		}
	}
}

// lapse expires the leader's lease and returns the previous leader.
func (ms *members) lapse() *rig {
	ms.t.Helper()
	was := ms.leader(0)
	if err := ms.store.Lapse(ms.store.LeaseOf("/shunt/leader")); err != nil {
		ms.t.Fatal(err)
	}
	return was
}

// TestLapsedLeaderIsReplaced expires the lease of one leader after another. Each time a manager
// leads the next epoch, the replaced one continues as a member, and nodes everywhere receive the
// epoch although nothing else changed.
func TestLapsedLeaderIsReplaced(t *testing.T) {
	ms := newMembers(t, 3, nil)
	ms.leader(1).apply(network(), muxNode(1), hostNode(1), web(1))
	var streams []*rawStream
	for i, r := range ms.rigs {
		s := r.raw(fmt.Sprintf("mux%d", i+1), "mux")
		if up := receive(t, s); !up.Snapshot || up.Epoch != 1 {
			t.Fatalf("first update of %s: %v", r.name, up)
		}
		streams = append(streams, s)
	}
	for epoch := int64(2); epoch < 6; epoch++ {
		ms.lapse()
		r := ms.leader(epoch)
		if l := ms.stored(); l.GetEpoch() != epoch || l.GetAddress() != r.addr {
			t.Fatalf("%v leads after the %d. lapse: must be epoch %d at %s", l, epoch-1, epoch, r.addr)
		}
		for i, s := range streams {
			for up := receive(t, s); up.Epoch != epoch; up = receive(t, s) {
				if up.Epoch > epoch {
					t.Fatalf("mux%d heard of epoch %d before it began: %v", i+1, up.Epoch, up)
				}
			}
		}
	}
	for _, r := range ms.rigs {
		select {
		case err := <-r.ended:
			t.Errorf("%s ended: %v", r.name, err)
		default:
		}
	}
}

// TestGracefulStopHandsOver: no lease has to expire, which the store in memory never lets happen.
func TestGracefulStopHandsOver(t *testing.T) {
	ms := newMembers(t, 2, nil)
	was := ms.leader(1)
	was.apply(network())
	was.stop()
	next := ms.leader(2)
	if next == was {
		t.Fatal("the one who stopped leads")
	}
	was.start()
	if epoch := was.m.Epoch(); epoch != 2 {
		t.Errorf("the one who came back knows epoch %d: must be 2", epoch)
	}
}

// TestKilledManagerTakesItsOwnKey: after kill -9 the previous lease still holds the leader key, and
// the restarted manager does not wait for it.
func TestKilledManagerTakesItsOwnKey(t *testing.T) {
	s := &deaf{Store: store.NewMemory()}
	r := newRig(t, s)
	r.apply(network())
	s.deaf = true
	r.stop()
	s.deaf = false
	if _, ok, _, err := s.Get(t.Context(), "/shunt/leader"); !ok || err != nil {
		t.Fatalf("the leader key is %v %v: the test needs it left over", ok, err)
	}
	r.start()
	r.apply(hostNode(1))
	if epoch := r.m.Epoch(); epoch != 2 {
		t.Errorf("epoch %d, want 2", epoch)
	}
}

// deaf is a store that ignores revocations of leases, as when the process is killed.
type deaf struct {
	store.Store
	deaf bool
}

func (d *deaf) Revoke(ctx context.Context, id store.LeaseID) error {
	if d.deaf {
		return nil
	}
	return d.Store.Revoke(ctx, id)
}

// TestFreshStoreIsMadeOnce starts managers at the same time on an empty store: one initializes it,
// all start.
func TestFreshStoreIsMadeOnce(t *testing.T) {
	first := newRig(t, store.NewMemory())
	s := store.NewMemory()
	var wg sync.WaitGroup
	opened := make([]*manager.Manager, 5)
	for i := range opened {
		path := t.TempDir()
		copySecrets(t, first.path, path)
		dir, err := manager.OpenDataDir(path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		wg.Go(func() {
			m, err := manager.Open(t.Context(), manager.Options{Dir: dir, Store: s, Name: fmt.Sprintf("m%d", i), Listen: "127.0.0.1:1", Log: logger(t)})
			if err != nil {
				t.Errorf("m%d: %v", i, err)
				return
			}
			opened[i] = m
		})
	}
	wg.Wait()
	for i, m := range opened {
		if m == nil {
			continue
		}
		defer m.Close()
		if epoch := m.Epoch(); epoch != 1 {
			t.Errorf("m%d: epoch %d, want 1", i, epoch)
		}
	}
	snap, err := s.List(t.Context(), "/shunt/")
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range snap.KVs {
		for _, once := range []string{"/shunt/schema", "/shunt/ca", "/shunt/keys/", "/shunt/epoch"} {
			if strings.HasPrefix(kv.Key, once) && (kv.CreateRevision != 2 || kv.ModRevision != 2) {
				t.Errorf("%s was made at revision %d and changed at %d: must be of the first transaction", kv.Key, kv.CreateRevision, kv.ModRevision)
			}
		}
	}
}

// TestForeignManagersAreRefused starts managers that each created their own CA on one empty store.
// One of them gets the store. The others return an error with the remedy and leave nothing behind.
func TestForeignManagersAreRefused(t *testing.T) {
	s := store.NewMemory()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var up []*manager.Manager
	for i := range 4 {
		path := t.TempDir()
		dir, err := manager.OpenDataDir(path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		wg.Go(func() {
			m, err := manager.Open(t.Context(), manager.Options{Dir: dir, Store: s, Name: fmt.Sprintf("m%d", i), Listen: "127.0.0.1:1", Log: logger(t)})
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				up = append(up, m)
				return
			}
			left, _ := filepath.Glob(filepath.Join(path, "pki", "*"))
			if text := err.Error(); !strings.Contains(text, "another CA") && !strings.Contains(text, "is missing") || len(left) > 0 {
				t.Errorf("m%d: %v, with %v left: must name the CA and leave nothing", i, err, left)
			}
		})
	}
	wg.Wait()
	for _, m := range up {
		m.Close()
	}
	if len(up) != 1 {
		t.Errorf("%d managers came up: must be one", len(up))
	}
}

// TestFormerSchemaIsMigrated: the epoch continues from the leader key of the previous version, and
// that version refuses the data.
func TestFormerSchemaIsMigrated(t *testing.T) {
	s := store.NewMemory()
	r := newRig(t, s)
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	r.stop()
	former, err := proto.Marshal(&apiv1.StoredLeader{Epoch: 7, Name: "an older name"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{
		store.Put("/shunt/leader", former), store.Put("/shunt/schema", []byte("1")), store.Delete("/shunt/epoch"), store.Delete("/shunt/ca"),
	}}); err != nil {
		t.Fatal(err)
	}
	r.start()
	if epoch := r.m.Epoch(); epoch != 8 {
		t.Errorf("epoch %d, want 8", epoch)
	}
	mux := r.join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool { return p.Epoch == 8 && len(p.Endpoints) == 1 })
	kv, _, _, err := s.Get(t.Context(), "/shunt/schema")
	if err != nil || string(kv.Value) != "3" {
		t.Errorf("schema %q %v: must be 3", kv.Value, err)
	}
	r.stop()
	r.start()
	if epoch := r.m.Epoch(); epoch != 9 {
		t.Errorf("epoch %d after another start, want 9", epoch)
	}
}

func TestUnknownSchemaIsRefused(t *testing.T) {
	s := store.NewMemory()
	r := newRig(t, s)
	r.stop()
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/shunt/schema", []byte("4"))}}); err != nil {
		t.Fatal(err)
	}
	dir, err := manager.OpenDataDir(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	_, err = manager.Open(t.Context(), manager.Options{Dir: dir, Store: s, Name: "m1", Listen: r.addr})
	if err == nil || !strings.Contains(err.Error(), "schema of the data: 4: must be at most 3") {
		t.Errorf("schema 4: %v", err)
	}
}

// gated is a store whose watch and writes can be held.
type gated struct {
	store.Store
	mu sync.Mutex
	// watching is open while watchers receive changes, writing while writes pass.
	watching, writing chan struct{}
	// held receives the waiting writes. A write is dropped from it if the channel is full.
	held chan store.Txn
}

func newGated(s store.Store) *gated {
	open := make(chan struct{})
	close(open)
	return &gated{Store: s, watching: open, writing: open, held: make(chan store.Txn, 100)}
}

// wrapGated gives each member a store that can be held.
func wrapGated(gates map[string]*gated) func(int, store.Store) store.Store {
	return func(i int, s store.Store) store.Store {
		g := newGated(s)
		gates[fmt.Sprintf("m%d", i+1)] = g
		return g
	}
}

// freeze holds watch and writes until the result is called.
func (g *gated) freeze() (thaw func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gate := make(chan struct{})
	g.watching, g.writing = gate, gate
	return func() { close(gate) }
}

func (g *gated) gates() (watching, writing chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.watching, g.writing
}

func (g *gated) Txn(ctx context.Context, txn store.Txn) (store.TxnResult, error) {
	_, gate := g.gates()
	select {
	case <-gate:
	default:
		select {
		case g.held <- txn:
		default:
		}
		// A frozen process does not see its calls end.
		<-gate
	}
	return g.Store.Txn(context.WithoutCancel(ctx), txn)
}

func (g *gated) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := g.Store.Watch(ctx, prefix, from)
	return gatedWatcher{w, g}, err
}

type gatedWatcher struct {
	store.Watcher
	g *gated
}

func (w gatedWatcher) Next(ctx context.Context) (store.Batch, error) {
	b, err := w.Watcher.Next(ctx)
	gate, _ := w.g.gates()
	select {
	case <-gate:
	case <-ctx.Done():
	}
	return b, err
}

// TestFrozenLeaderWritesNothing freezes the leader in the middle of a write, lets another one lead
// and write, and thaws it. The write is neither stored nor acknowledged, and the member continues
// as a follower.
func TestFrozenLeaderWritesNothing(t *testing.T) {
	gates := map[string]*gated{}
	ms := newMembers(t, 2, wrapGated(gates))
	old := ms.leader(1)
	old.apply(network())
	g := gates[old.name]
	thaw := g.freeze()
	refused := make(chan error, 1)
	go func() {
		_, err := old.tryApply(hostNode(1))
		refused <- err
	}()
	// Its journals write, too.
	isWrite := func(op store.Op) bool { return op.Key == "/shunt/objects/Node/host1" }
	for txn := <-g.held; !slices.ContainsFunc(txn.Ops, isWrite); txn = <-g.held {
	}
	ms.lapse()
	next := ms.leader(2)
	if next == old {
		t.Fatal("the frozen one leads")
	}
	rev := next.apply(hostNode(2)).Revision
	thaw()
	if err := <-refused; connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("the frozen write: %v, want unavailable", err)
	}
	snap, err := ms.store.List(t.Context(), "/shunt/objects/Node/")
	if err != nil || len(snap.KVs) != 1 || snap.KVs[0].ModRevision != rev {
		t.Errorf("nodes in the store: %v %v: must be host2 alone", snap, err)
	}
	if l := ms.stored(); l.GetName() != next.name || l.GetEpoch() != 2 {
		t.Errorf("%v leads: must be %s", l, next.name)
	}
}

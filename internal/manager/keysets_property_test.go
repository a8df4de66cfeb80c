package manager

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/store"
)

// keyWorld is a leader with nodes that receive plans late, apply them later, disconnect and
// reconnect.
type keyWorld struct {
	rt   *rapid.T
	m    *Manager
	now  time.Time
	rev  int64
	kv   map[string]store.KV
	node map[string]*keyNode
}

// keyNode is a node: the updates that it received and has not applied yet, and the plan that it
// applied.
type keyNode struct {
	s     *session // nil while it is disconnected
	items map[string]*apiv1.PlanItem
	inbox []*apiv1.PlanUpdate
	obeys plan.Plan
	// revision and has describe the applied plan. has returns as items with the next stream.
	revision int64
	has      map[string]*apiv1.PlanItem
}

// worldClock advances only by the world's own steps.
type worldClock struct {
	clock.System
	w *keyWorld
}

// Now implements clock.Clock.
func (c worldClock) Now() time.Time { return c.w.now }

var keyNodes = []string{"mux1", "mux2", "mux3", "host1", "host2"}

func newKeyWorld(rt *rapid.T) *keyWorld {
	w := &keyWorld{rt: rt, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), kv: map[string]store.KV{}, node: map[string]*keyNode{}}
	w.lead()
	sealed, err := w.m.secrets.sealKey(dirRingKeys+"1", plan.Key{ID: 1})
	if err != nil {
		rt.Fatal(err)
	}
	w.commit([]store.Op{store.Put(dirRingKeys+"1", sealed), store.Put(keySchema, []byte(schemaText(Schema)))})
	for _, name := range keyNodes {
		w.node[name] = &keyNode{has: map[string]*apiv1.PlanItem{}}
	}
	w.apply(w.objects())
	for _, name := range keyNodes {
		w.connect(name)
	}
	return w
}

// lead begins a term of another manager, which has the store and no state of nodes.
func (w *keyWorld) lead() {
	s := testSecrets(w.rt)
	w.m = &Manager{
		secrets: s, view: newView(s), reports: newReports(), sessions: newSessions(worldClock{w: w}), opinions: newOpinions(),
		o: Options{Clock: worldClock{w: w}, KeyRest: DefaultKeyRest, KeyLifetime: DefaultKeyLifetime, CIDKeyLifetime: DefaultKeyLifetime, RingSize: ring.SizeCode},
	}
	snap := store.Snapshot{Revision: w.rev}
	for _, key := range slices.Sorted(maps.Keys(w.kv)) {
		snap.KVs = append(snap.KVs, w.kv[key])
	}
	if err := w.m.view.load(snap, 0); err != nil {
		w.rt.Fatal(err)
	}
	for _, n := range w.node {
		n.s = nil
	}
}

// commit stores and folds ops.
func (w *keyWorld) commit(ops []store.Op) {
	w.rev++
	b := store.Batch{Revision: w.rev}
	for _, op := range append(ops, store.Put(keySerial, []byte("x"))) {
		kv := store.KV{Key: op.Key, Value: op.Value, ModRevision: w.rev}
		if w.kv[op.Key] = kv; op.Delete {
			delete(w.kv, op.Key)
		}
		b.Events = append(b.Events, store.Event{KV: kv, Deleted: op.Delete})
	}
	if err := w.m.view.fold(b); err != nil {
		w.rt.Fatal(err)
	}
}

// objects returns two services. It draws the affinity and the protocol of each endpoint. Backends
// stay.
func (w *keyWorld) objects() []lb.Object {
	network := &lb.Network{Name: "main", VIPs: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Underlay: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	out := []lb.Object{network}
	for i, name := range keyNodes {
		out = append(out, &lb.Node{Name: name, Role: lb.Role(name[:len(name)-1]), Addresses: []netip.Addr{hostAddr(i)}})
	}
	for i := range 2 {
		svc := &lb.Service{Name: fmt.Sprint("s", i), VIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + 2*i)}), netip.AddrFrom4([4]byte{203, 0, 113, byte(2 + 2*i)})}}
		svc.Placement = &lb.Placement{Replicas: rapid.Uint32Range(0, 2).Draw(w.rt, "replicas")}
		for port := range 2 {
			ep := lb.Endpoint{Protocol: lb.TCP, Port: uint16(80 + port)}
			switch rapid.IntRange(0, 3).Draw(w.rt, "carries") {
			case 0:
			case 1:
				ep.Protocol, ep.QUIC = lb.UDP, &lb.QUIC{}
			default:
				ep.Affinity = lb.AffinityCookie
			}
			for b := range 2 {
				ep.Backends = append(ep.Backends, lb.Backend{DIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 20, byte(3 + b), byte(10 + i)})}, Host: hostAddr(3 + b), Port: 8080, Weight: 1})
			}
			svc.Endpoints = append(svc.Endpoints, ep)
		}
		out = append(out, svc)
	}
	for _, o := range out {
		lb.SetDefaults(o)
	}
	return out
}

func (w *keyWorld) apply(objects []lb.Object) {
	wr := newWrite(w.m.view.snapshot())
	for _, o := range objects {
		if err := wr.apply([]opinion{{Statement: convert.Statement{Content: convert.Content(convert.ToObject(o)), Object: o, Full: convert.ToObject(o)}, source: defaultSource}}); err != nil {
			w.rt.Fatal(err)
		}
	}
	if err := wr.finish(conditions{size: ring.SizeCode, now: w.now}); err != nil {
		w.rt.Fatal(err)
	}
	if len(wr.txn.Ops) > 0 {
		w.commit(wr.txn.Ops)
	}
}

// place assigns VIPs to random muxes. A previous mux either stays as leaving or is removed
// immediately.
func (w *keyWorld) place() {
	muxes := keyNodes[:3]
	for _, vip := range slices.SortedFunc(maps.Keys(w.m.view.state.Places), comparePlaces) {
		was := w.m.view.state.Places[vip]
		if rapid.Bool().Draw(w.rt, "stays") {
			continue
		}
		next := plan.Place{Muxes: slices.Sorted(slices.Values(rapid.SliceOfNDistinct(rapid.SampledFrom(muxes), 1, 2, rapid.ID).Draw(w.rt, "muxes")))}
		for _, name := range was.All() {
			if !slices.Contains(next.Muxes, name) && rapid.Bool().Draw(w.rt, "leaves later") {
				next.Leaving = append(next.Leaving, name)
			}
		}
		b := vip.Bucket(placeBuckets)
		places := maps.Clone(w.m.view.vips.buckets[b].places)
		places[vip] = next
		value, err := proto.Marshal(convert.ToStoredPlacement(places))
		if err != nil {
			w.rt.Fatal(err)
		}
		w.commit([]store.Op{store.Put(bucketKey(b), value)})
	}
}

// duty stores the due steps of keys.
func (w *keyWorld) duty() (waits bool) {
	steps, waiting := w.m.keySteps(w.now)
	var ops []store.Op
	for _, s := range steps {
		value, err := w.m.secrets.sealKeySet(s.id.key(), &s.next)
		if err != nil {
			w.rt.Fatal(err)
		}
		ops = append(ops, store.Put(s.id.key(), value))
	}
	if len(ops) > 0 {
		w.commit(ops)
	}
	return len(waiting) > 0 || len(ops) > 0
}

func (w *keyWorld) rotate() {
	req := &apiv1.RotateKeysRequest{All: true}
	steps, _, err := w.m.rotations(req, identity{role: "admin"})
	if err != nil {
		w.rt.Fatal(err)
	}
	var ops []store.Op
	for _, s := range steps {
		if rapid.Bool().Draw(w.rt, "this") {
			value, err := w.m.secrets.sealKeySet(s.id.key(), &s.next)
			if err != nil {
				w.rt.Fatal(err)
			}
			ops = append(ops, store.Put(s.id.key(), value))
		}
	}
	if len(ops) > 0 {
		w.commit(ops)
	}
}

// connect opens a stream of a node that has its applied plan.
func (w *keyWorld) connect(name string) {
	n := w.node[name]
	w.leave(name)
	hello := &apiv1.Hello{Name: name, HaveRevision: n.revision}
	n.s = newSession(context.Background(), identity{name: name, role: name[:len(name)-1]})
	n.items, n.inbox = nil, nil
	w.m.sessions.add(n.s)
	w.m.view.join(n.s)
	w.m.reports.connected(n.s, hello, w.now)
}

func (w *keyWorld) leave(name string) {
	n := w.node[name]
	if n.s == nil {
		return
	}
	w.m.view.leave(n.s)
	w.m.sessions.remove(n.s)
	w.m.reports.disconnected(n.s, w.now)
	n.s, n.inbox = nil, nil
}

// send queues the pending updates for a node.
func (w *keyWorld) send(name string) {
	if n := w.node[name]; n.s != nil {
		ups, _ := n.s.updates(w.m.view, nil)
		n.inbox = append(n.inbox, ups...)
	}
}

// obey applies the oldest update in a node's inbox.
func (w *keyWorld) obey(name string) {
	n := w.node[name]
	if n.s == nil || len(n.inbox) == 0 {
		return
	}
	up := n.inbox[0]
	n.inbox = n.inbox[1:]
	if up.GetSnapshot() {
		n.has = map[string]*apiv1.PlanItem{}
	}
	for _, key := range up.GetDelete() {
		delete(n.has, key)
	}
	for _, item := range up.GetUpsert() {
		n.has[item.GetKey()] = item
	}
	p, err := convert.FromItems(slices.Collect(maps.Values(n.has)))
	if err != nil {
		w.rt.Fatal(err)
	}
	n.obeys, n.revision = p, up.GetRevision()
}

// say sends a node's report of its applied plan and its announcements.
func (w *keyWorld) say(name string) {
	n := w.node[name]
	if n.s == nil {
		return
	}
	w.m.sessions.obeyed(n.s, n.revision)
	w.m.reports.acked(n.s, n.revision, w.now)
	status := &apiv1.NodeStatus{}
	for _, s := range n.obeys.Services {
		for _, vip := range s.VIPs {
			if len(plan.OfVIP(n.obeys.Endpoints, lb.EndpointKey{VIP: vip})) > 0 {
				status.Routes = append(status.Routes, &apiv1.RouteStatus{Prefix: netip.PrefixFrom(vip, vip.BitLen()).String(), Advertised: true})
			}
		}
	}
	w.m.reports.report(n.s, status, w.now)
}

// settle stores the due steps of keys, and lets all nodes except one apply and acknowledge every
// update. It reports whether there were steps or waiting phases.
func (w *keyWorld) settle(but string) (waits bool) {
	waits = w.duty()
	for _, name := range keyNodes {
		if name == but {
			continue
		}
		if w.node[name].s == nil {
			w.connect(name)
		}
		w.send(name)
		for len(w.node[name].inbox) > 0 {
			w.obey(name)
			w.check()
		}
		w.say(name)
	}
	return waits
}

// check fails unless each mux that serves a VIP with cookies has every key that a host may stamp
// with, with the same bytes.
func (w *keyWorld) check() {
	for host, h := range w.node {
		for _, keys := range h.obeys.Cookies {
			stamps := slices.ContainsFunc(h.obeys.Bindings, func(b plan.Binding) bool { return b.Cookie && b.Key.VIP == keys.VIP })
			if h.obeys.Node.Role != lb.RoleHost || !stamps {
				continue
			}
			mint := keys.Keys[slices.IndexFunc(keys.Keys, func(k plan.CookieKey) bool { return k.Epoch == keys.Mint })]
			for mux, x := range w.node {
				if !slices.ContainsFunc(x.obeys.Endpoints, func(e plan.Endpoint) bool { return e.Cookie != "" && e.Key.VIP == keys.VIP }) {
					continue
				}
				i := slices.IndexFunc(x.obeys.Cookies, func(k plan.CookieKeys) bool { return k.VIP == keys.VIP })
				if i < 0 || !slices.Contains(x.obeys.Cookies[i].Keys, mint) {
					w.rt.Fatalf("%s stamps for %s with epoch %d, and %s, which serves it, has %+v", host, keys.VIP, mint.Epoch, mux, x.obeys.Cookies)
				}
			}
		}
	}
	for name, x := range w.node {
		for _, e := range x.obeys.Endpoints {
			if e.QUIC != nil && e.QUIC.Keyed() && !slices.ContainsFunc(x.obeys.CIDs, func(k plan.CIDKeys) bool { return k.VIP == e.Key.VIP }) {
				w.rt.Fatalf("%s serves quic at %s without keys", name, e.Key.VIP)
			}
		}
	}
}

// TestMuxesReadWhatHostsStamp: under random rotations, changes of services and places, nodes that
// are slow, disconnect or reconnect, and changes of leader, each mux that serves a VIP always has
// the key that any host stamps with. Once nodes are quick, all keys become steady.
func TestMuxesReadWhatHostsStamp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newKeyWorld(rt)
		some := func() string { return rapid.SampledFrom(keyNodes).Draw(rt, "node") }
		for range rapid.IntRange(1, 120).Draw(rt, "steps") {
			switch rapid.IntRange(0, 15).Draw(rt, "what") {
			case 0:
				w.rotate()
			case 1:
				w.apply(w.objects())
			case 2:
				w.place()
			case 3:
				w.connect(some())
			case 4:
				w.leave(some())
			case 5:
				if rapid.IntRange(0, 3).Draw(rt, "another leads") == 0 {
					w.lead()
				}
			case 6:
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(rt, "hours")) * time.Hour)
			case 7, 8, 9:
				w.duty()
			case 10, 11:
				w.send(some())
			case 12:
				w.obey(some())
			case 13:
				w.say(some())
			case 14:
				w.settle(some())
			default:
				name := some()
				w.send(name)
				for range rapid.IntRange(1, 3).Draw(rt, "updates") {
					w.obey(name)
					w.check()
					w.say(name)
				}
			}
			w.check()
		}
		for round := 0; ; round++ {
			if waits := w.settle(""); !waits {
				break
			}
			if round == 20 {
				_, waiting := w.m.keySteps(w.now)
				rt.Fatalf("keys do not come to rest although nodes are quick: %+v", waiting)
			}
		}
		w.m.view.eachKeySetLocked(func(id keySetID, set plan.KeySet, _ int64) {
			if w.m.view.neededLocked(id) && set.Waits() {
				rt.Fatalf("keys of %s rest in phase %s", id.words(), set.Phase)
			}
		})
	})
}

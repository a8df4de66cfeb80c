package manager

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/store"
)

// nodeNames are the nodes whose plans the model follows; "ghost" never has an object.
var nodeNames = []string{"mux1", "mux2", "host1", "host2", "ghost"}

// TestStreamsEqualPlans applies random writes to a view. At random moments each node's session
// sends. The node's state, folded from its updates, must equal the result of plan.ForNode.
func TestStreamsEqualPlans(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			w.step(rt)
			for _, name := range nodeNames {
				if rapid.Bool().Draw(rt, "send") {
					w.send(rt, name, true)
				}
			}
		}
		for _, name := range nodeNames {
			w.send(rt, name, false)
			w.check(rt, name)
		}
		var all []lb.Object
		holdings := map[string]holding{}
		for _, rec := range w.view.records {
			all = append(all, rec.obj)
			if tenant, h := holdingOf(rec.obj, rec.size); tenant != "" {
				holdings[tenant] = holdings[tenant].plus(h, 1)
			}
		}
		if !maps.Equal(holdings, w.view.holdings) {
			rt.Fatalf("tenants hold %v, the records %v", w.view.holdings, holdings)
		}
		// Removing a Network is a fault of all remaining objects.
		edit := lb.Edit{Kind: lb.KindNetwork, Name: "main"}
		left := slices.DeleteFunc(slices.Clone(all), func(o lb.Object) bool { return o.Kind() == lb.KindNetwork && o.ObjectName() == "main" })
		if got, want := w.view.wanted.Check(edit), lb.ValidateState(left); !reflect.DeepEqual(got, want) {
			rt.Fatalf("without the Network the view's objects have the faults\n%v\nwant\n%v", got, want)
		}
	})
}

// world is a view with sessions, and the items that each node has received.
type world struct {
	view     *view
	now      time.Time
	rev      int64
	sessions map[string]*session
	got      map[string]map[string]*apiv1.PlanItem
	revision map[string]int64
}

func newWorld(rt *rapid.T) *world {
	w := &world{
		view: newView(testSecrets(rt)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		sessions: map[string]*session{}, got: map[string]map[string]*apiv1.PlanItem{}, revision: map[string]int64{},
	}
	w.view.state.RingKeys = []plan.Key{{ID: 1}}
	w.view.items.ringKeys[plan.KeyItem(1)] = convert.KeyItem(plan.Key{ID: 1})
	w.view.schema = Schema
	all := newSessions(clock.System{})
	for _, name := range nodeNames {
		w.sessions[name] = newSession(rt.Context(), identity{name: name, role: name[:len(name)-1]})
		all.add(w.sessions[name])
		w.view.join(w.sessions[name])
		w.got[name] = map[string]*apiv1.PlanItem{}
	}
	return w
}

// step commits a random write, computed as the manager does.
func (w *world) step(rt *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 13).Draw(rt, "hours")) * time.Hour)
	wr := newWrite(w.view.snapshot())
	if rapid.IntRange(0, 3).Draw(rt, "delete") == 0 {
		for _, r := range slices.SortedFunc(maps.Keys(w.view.records), compareRefs) {
			if rapid.Bool().Draw(rt, "this") {
				if err := wr.delete(r, w.now); err != nil {
					rt.Fatal(err)
				}
			}
		}
	} else {
		for _, o := range objects(rt) {
			if err := wr.apply([]opinion{{Statement: convert.Statement{Content: convert.Content(convert.ToObject(o)), Object: o, Full: convert.ToObject(o)}, source: defaultSource}}); err != nil {
				rt.Fatal(err)
			}
		}
	}
	if err := wr.finish(conditions{size: ring.SizeCode, now: w.now}); err != nil {
		return // the state would be invalid; nothing is committed
	}
	w.rev++
	batch := store.Batch{Revision: w.rev}
	ops := rapid.Permutation(slices.Concat(wr.txn.Ops, randomPlacement(rt), w.randomKeys(rt, wr.txn.Ops))).Draw(rt, "order")
	for _, op := range ops {
		batch.Events = append(batch.Events, store.Event{KV: store.KV{Key: op.Key, Value: op.Value, ModRevision: w.rev}, Deleted: op.Delete})
	}
	puts := slices.ContainsFunc(ops, func(op store.Op) bool { return !op.Delete })
	if puts && rapid.Bool().Draw(rt, "own") { // the watch delivers it once more
		if err := w.view.foldStored(ops, w.rev); err != nil {
			rt.Fatal(err)
		}
		if w.view.rev != w.rev {
			rt.Fatalf("the view is at revision %d after this member stored %d", w.view.rev, w.rev)
		}
	}
	if err := w.view.fold(batch); err != nil {
		rt.Fatal(err)
	}
	ahead := []store.Op{store.Put(keySerial, []byte("ahead"))}
	if err := w.view.foldStored(ahead, w.rev+2); err != nil || w.view.rev != w.rev {
		rt.Fatalf("the view is at revision %d (%v): it lacks %d", w.view.rev, err, w.rev+1)
	}
}

// testSecrets returns secrets with a key for the store, and no CA.
func testSecrets(t interface{ Fatal(...any) }) *secrets {
	s, err := newSecrets(nil, make([]byte, storeKeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// randomKeys takes random steps of keys that a write does not touch.
func (w *world) randomKeys(rt *rapid.T, written []store.Op) (ops []store.Op) {
	var ids []keySetID
	w.view.eachKeySetLocked(func(id keySetID, _ plan.KeySet, _ int64) { ids = append(ids, id) })
	slices.SortFunc(ids, compareKeySets)
	for _, id := range ids {
		if slices.ContainsFunc(written, func(op store.Op) bool { return op.Key == id.key() }) || rapid.Bool().Draw(rt, "keys stay") {
			continue
		}
		set, _ := w.view.keySetLocked(id)
		next, over := set.Step(w.now, true, time.Hour)
		if !over {
			next, _ = set.Rotate([16]byte{byte(w.rev)}, true, w.now, time.Hour)
		}
		value, err := w.view.secrets.sealKeySet(id.key(), &next)
		if err != nil {
			rt.Fatal(err)
		}
		ops = append(ops, store.Put(id.key(), value))
	}
	return ops
}

// objects returns a few random objects with distinct names.
func objects(rt *rapid.T) []lb.Object {
	network := &lb.Network{
		Name: "main", VIPs: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Underlay: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		MTU:   uint32(rapid.SampledFrom([]int{1500, 9000}).Draw(rt, "mtu")),
		Encap: rapid.SampledFrom([]string{lb.EncapIPIP, lb.EncapGUE}).Draw(rt, "encap"),
	}
	out := []lb.Object{network}
	if rapid.Bool().Draw(rt, "divided") {
		network.VIPs, network.Underlay = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/31")}, []netip.Prefix{netip.MustParsePrefix("10.20.0.0/23")}
		second := &lb.Network{
			Name: rapid.SampledFrom([]string{"a", "second"}).Draw(rt, "second"), MTU: 4000, Encap: rapid.SampledFrom([]string{lb.EncapIPIP, lb.EncapGUE}).Draw(rt, "encap"),
			VIPs: []netip.Prefix{netip.MustParsePrefix("203.0.113.2/31"), netip.MustParsePrefix("203.0.113.4/30")}, Underlay: []netip.Prefix{netip.MustParsePrefix("10.20.2.0/23"), netip.MustParsePrefix("10.20.4.0/22")},
			TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.80.0.0/16")},
		}
		out = append(out, second)
	}
	for i, name := range []string{"mux1", "mux2", "host1", "host2"} {
		if rapid.IntRange(0, 2).Draw(rt, name) > 0 {
			n := &lb.Node{Name: name, Role: lb.Role(name[:len(name)-1]), Addresses: []netip.Addr{hostAddr(i)}, Drain: rapid.Bool().Draw(rt, "drain")}
			if n.Role == lb.RoleHost && rapid.IntRange(0, 4).Draw(rt, "moved") == 0 {
				n.Addresses[0] = netip.AddrFrom4([4]byte{10, 20, byte(7 + i), 1})
			}
			out = append(out, n)
		}
	}
	for i := range 3 {
		if rapid.Bool().Draw(rt, "service") {
			out = append(out, randomService(rt, fmt.Sprintf("s%d", i)))
		}
	}
	for _, name := range []string{"gold", "silver"} {
		if rapid.Bool().Draw(rt, name) {
			out = append(out, &lb.Policy{Name: name, Limits: randomLimits(rt), Sources: randomSources(rt), Placement: randomReplicas(rt)})
		}
	}
	if rapid.Bool().Draw(rt, "tenant") {
		out = append(out, &lb.Tenant{Name: "shop", Quotas: lb.Quotas{Changes: 1}})
	}
	for _, o := range out {
		lb.SetDefaults(o)
	}
	return out
}

// randomPlacement writes some buckets: places of VIPs that may exist, on muxes that may not.
func randomPlacement(rt *rapid.T) (ops []store.Op) {
	buckets := map[int]map[place.Key]plan.Place{}
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"ghost", "mux1", "mux2"}), 0, 2, rapid.ID)
	for i := range 4 {
		vip := plan.VIPKey(netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i)}))
		b := vip.Bucket(placeBuckets)
		switch rapid.IntRange(0, 3).Draw(rt, "placed") {
		case 0:
			buckets[b] = map[place.Key]plan.Place{}
		case 1:
			muxes := slices.Sorted(slices.Values(names.Draw(rt, "muxes")))
			leaving := slices.Sorted(slices.Values(names.Draw(rt, "leaving")))
			leaving = slices.DeleteFunc(leaving, func(n string) bool { return slices.Contains(muxes, n) })
			buckets[b] = map[place.Key]plan.Place{vip: {Muxes: muxes, Leaving: leaving}}
		}
	}
	for b, places := range buckets {
		value, err := proto.Marshal(convert.ToStoredPlacement(places))
		if err != nil {
			rt.Fatal(err)
		}
		ops = append(ops, store.Put(bucketKey(b), value))
	}
	return ops
}

func randomReplicas(rt *rapid.T) *lb.Placement {
	if rapid.Bool().Draw(rt, "no placement") {
		return nil
	}
	return &lb.Placement{Replicas: rapid.Uint32Range(0, 2).Draw(rt, "replicas")}
}

func randomLimits(rt *rapid.T) *lb.Limits {
	if rapid.Bool().Draw(rt, "no limits") {
		return nil
	}
	return &lb.Limits{Packets: rapid.Uint64Range(0, 2).Draw(rt, "packets")}
}

func randomSources(rt *rapid.T) *lb.Sources {
	if rapid.Bool().Draw(rt, "no sources") {
		return nil
	}
	s := &lb.Sources{}
	for i := range rapid.IntRange(0, 2).Draw(rt, "denied") {
		s.Deny = append(s.Deny, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(i), 0}), 24))
	}
	return s
}

func hostAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, byte(i), 1}) }

// randomService takes its VIPs from a small pool, so that endpoints move between services.
func randomService(rt *rapid.T, name string) *lb.Service {
	s := &lb.Service{
		Name: name, Limits: randomLimits(rt), Sources: randomSources(rt), Placement: randomReplicas(rt), Policy: rapid.SampledFrom([]string{"", "gold", "silver"}).Draw(rt, "policy"),
	}
	for _, v := range rapid.SliceOfNDistinct(rapid.IntRange(1, 4), 1, 2, rapid.ID).Draw(rt, "vips") {
		s.VIPs = append(s.VIPs, netip.AddrFrom4([4]byte{203, 0, 113, byte(v)}))
	}
	for _, port := range rapid.SliceOfNDistinct(rapid.IntRange(80, 82), 1, 2, rapid.ID).Draw(rt, "ports") {
		ep := lb.Endpoint{
			Protocol: lb.TCP, Port: uint16(port), Encap: rapid.SampledFrom([]string{"", lb.EncapGUE}).Draw(rt, "encap"),
			SlowStart: time.Duration(rapid.IntRange(0, 1).Draw(rt, "slow start")) * time.Hour, DrainTimeout: time.Duration(rapid.IntRange(0, 1).Draw(rt, "drain timeout")) * time.Hour,
		}
		switch rapid.IntRange(0, 3).Draw(rt, "carries") {
		case 0:
			ep.Affinity = lb.AffinityCookie
		case 1:
			ep.Protocol, ep.QUIC = lb.UDP, &lb.QUIC{Format: rapid.SampledFrom([]string{lb.QUICLB, lb.QUICLBPlain}).Draw(rt, "format")}
		}
		if port == 82 {
			ep.PortEnd, ep.Health.Checks = 90, []lb.Check{{Port: 8080}}
		}
		for _, b := range rapid.SliceOfNDistinct(rapid.IntRange(1, 6), 1, 4, rapid.ID).Draw(rt, "backends") {
			host := 2 + b%2
			ep.Backends = append(ep.Backends, lb.Backend{
				DIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 20, byte(host), byte(10 + b)})}, Host: hostAddr(host), Port: map[bool]uint16{false: 8080}[ep.PortEnd != 0],
				Weight: uint16(rapid.IntRange(0, 2).Draw(rt, "weight")), Drain: rapid.IntRange(0, 5).Draw(rt, "drain") == 0,
			})
		}
		s.Endpoints = append(s.Endpoints, ep)
	}
	return s
}

// holdSome holds changes back as if hosts had not applied them.
func (w *world) holdSome(rt *rapid.T, s *session) (held []fold) {
	blocked := make([]bool, len(s.folds))
	for i := range blocked {
		blocked[i] = rapid.Bool().Draw(rt, "blocked")
	}
	_, held = split(s.folds, blocked, make([]bool, len(blocked)))
	return held
}

// send delivers the session's updates to the node, except for held changes.
func (w *world) send(rt *rapid.T, name string, some bool) {
	var held []fold
	var hold func() []fold
	if s := w.sessions[name]; some && s.role == lb.RoleMux {
		hold = func() []fold { held = w.holdSome(rt, s); return held }
	}
	ups, _ := w.sessions[name].updates(w.view, hold)
	for _, up := range ups {
		told := map[string]bool{}
		for _, item := range up.Upsert {
			told[item.Key] = true
		}
		for _, key := range up.Delete {
			told[key] = true
		}
		for i := range held {
			if held[i].about(told) || up.Revision >= held[i].first {
				rt.Fatalf("%s: update of revision %d holds what is to wait: %+v", name, up.Revision, held[i])
			}
		}
		if up.Revision < w.revision[name] {
			rt.Fatalf("%s: update of revision %d after %d", name, up.Revision, w.revision[name])
		}
		if up.Snapshot {
			w.got[name] = map[string]*apiv1.PlanItem{}
		}
		for _, key := range up.Delete {
			if w.got[name][key] == nil {
				rt.Fatalf("%s: delete of %s, which it does not have", name, key)
			}
			delete(w.got[name], key)
		}
		for _, item := range up.Upsert {
			if proto.Equal(w.got[name][item.Key], item) {
				rt.Fatalf("%s: %s was sent twice", name, item.Key)
			}
			w.got[name][item.Key] = item
		}
		w.revision[name] = up.Revision
		if !up.Snapshot && len(up.Upsert) == 0 && len(up.Delete) == 0 {
			rt.Fatalf("%s: was told nothing", name)
		}
		p, err := convert.FromItems(slices.Collect(maps.Values(w.got[name])))
		if err == nil {
			err = p.Whole()
		}
		if err != nil {
			rt.Fatalf("%s: its plan has a fault: %v", name, err)
		}
	}
}

func (w *world) check(rt *rapid.T, name string) {
	want := plan.ForNode(&w.view.state, name)
	s := w.sessions[name]
	s.of.obeyed(s, w.revision[name])
	if !s.settled() || s.of.behind[s] {
		rt.Fatalf("%s: obeys revision %d and is not settled at %d", name, w.revision[name], want.Revision)
	}
	var items []*apiv1.PlanItem
	for _, item := range w.got[name] {
		items = append(items, item)
	}
	got, err := convert.FromItems(items)
	if err != nil {
		rt.Fatal(err)
	}
	got.Revision, got.Epoch = want.Revision, want.Epoch
	if len(want.Endpoints) == 0 {
		want.Endpoints = nil
	}
	if !reflect.DeepEqual(got, want) {
		rt.Fatalf("%s has\n%+v\nwant\n%+v", name, got, want)
	}
}

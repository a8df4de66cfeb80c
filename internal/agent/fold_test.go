package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

func randomItem(rt *rapid.T) *apiv1.PlanItem {
	key := lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(rapid.IntRange(1, 4).Draw(rt, "vip"))}), Protocol: lb.TCP, Port: uint16(rapid.IntRange(80, 82).Draw(rt, "port"))}
	other := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 3).Draw(rt, "dip"))})
	value := uint16(rapid.IntRange(0, 2).Draw(rt, "value"))
	switch rapid.IntRange(0, 7).Draw(rt, "item") {
	case 6:
		return convert.CookiesItem(&plan.CookieKeys{VIP: key.VIP, Keys: []plan.CookieKey{{Epoch: 1 + uint32(value)}}, Mint: 1 + uint32(value)})
	case 7:
		return convert.CIDsItem(&plan.CIDKeys{VIP: key.VIP, Keys: []plan.CIDKey{{Epoch: 1 + uint32(value)}}, Mint: 1 + uint32(value)})
	case 0:
		return convert.KeyItem(plan.Key{ID: uint32(value), Key: [16]byte{byte(key.Port)}})
	case 1:
		return convert.BindingItem(&plan.Binding{Key: key, Outer: other, DIP: other, Member: value})
	case 2:
		n := lb.Node{Name: fmt.Sprint("n", value), Role: lb.RoleMux, Addresses: []netip.Addr{other}}
		lb.SetDefaults(&n)
		return convert.NodeItem(&plan.Plan{Node: n, MTU: uint32(1400 + value)})
	}
	policy := rapid.SampledFrom([]string{"gold", "silver"}).Draw(rt, "policy")
	list := lb.Sources{Deny: []netip.Prefix{netip.PrefixFrom(other, 32)}}
	switch value + uint16(rapid.IntRange(0, 2).Draw(rt, "shared")) {
	case 0:
		return convert.ServiceItem(&plan.Service{Name: fmt.Sprint("s", key.Port), VIPs: []netip.Addr{key.VIP}, SourcesOf: policy})
	case 1:
		return convert.ServiceItem(&plan.Service{Name: fmt.Sprint("s", key.Port), VIPs: []netip.Addr{key.VIP}, Sources: list})
	case 2:
		return convert.SourcesItem(&plan.Sources{Policy: policy, Sources: list})
	}
	return convert.EndpointItem(&plan.Endpoint{Key: key, Members: []plan.Member{{ID: value, DIP: other, Outer: other}}})
}

// TestFoldingEqualsReadingAll folds random updates; the oracle parses all items again after each.
// An update without a list that a service uses is refused and changes nothing.
func TestFoldingEqualsReadingAll(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f, all := &folded{}, map[string]*apiv1.PlanItem{}
		for rev := range int64(rapid.IntRange(1, 20).Draw(rt, "updates")) {
			up := &apiv1.PlanUpdate{Revision: rev + 1, Epoch: 1, Snapshot: rev == 0 || rapid.IntRange(0, 9).Draw(rt, "snapshot") == 0}
			had := maps.Clone(all)
			if up.Snapshot {
				clear(all)
			}
			upserts := map[string]*apiv1.PlanItem{}
			for range rapid.IntRange(0, 4).Draw(rt, "upserts") {
				item := randomItem(rt)
				upserts[item.Key] = item
			}
			for _, key := range slices.Sorted(maps.Keys(all)) {
				if upserts[key] == nil && rapid.IntRange(0, 3).Draw(rt, "delete") == 0 {
					up.Delete = append(up.Delete, key)
					delete(all, key)
				}
			}
			for _, key := range slices.Sorted(maps.Keys(upserts)) {
				up.Upsert = append(up.Upsert, upserts[key])
				all[key] = upserts[key]
			}
			before := fmt.Sprintf("%+v", f.plan)
			next, _, err := f.with(up)
			if missing(all) {
				if err == nil {
					rt.Fatalf("a plan without the sources of a service was taken: %v", slices.Sorted(maps.Keys(all)))
				}
				all = had
				continue
			}
			if err != nil {
				rt.Fatal(err)
			}
			if fmt.Sprintf("%+v", f.plan) != before {
				rt.Fatal("the plan before was modified")
			}
			want, err := convert.FromItems(slices.Collect(maps.Values(all)))
			if err != nil {
				rt.Fatal(err)
			}
			want.Revision, want.Epoch = rev+1, 1
			if !reflect.DeepEqual(next.plan, want) {
				rt.Fatalf("folded\n%+v, want\n%+v", next.plan, want)
			}
			f = next
		}
		again, _, err := (&folded{}).with(f.snapshot())
		if err != nil || !reflect.DeepEqual(again.plan, f.plan) {
			rt.Fatalf("the snapshot came back as\n%+v %v, want\n%+v", again, err, f.plan)
		}
	})
}

// missing reports whether a service uses a list that is not among the items.
func missing(items map[string]*apiv1.PlanItem) bool {
	for _, item := range items {
		if of := item.GetService().GetSourcesOf(); of != "" && items["sources/"+of] == nil {
			return true
		}
	}
	return false
}

func TestOldEpochIsNotFolded(t *testing.T) {
	f, _, err := (&folded{}).with(&apiv1.PlanUpdate{Revision: 9, Epoch: 3, Snapshot: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.with(&apiv1.PlanUpdate{Revision: 10, Epoch: 2, Snapshot: true}); err == nil {
		t.Error("epoch 2 was folded after epoch 3")
	}
	if _, changed, err := f.with(&apiv1.PlanUpdate{Revision: 10, Epoch: 3}); err != nil || changed {
		t.Errorf("a revision without a change: changed %v, %v", changed, err)
	}
}

func TestItemsMustHaveTheirOwnKey(t *testing.T) {
	item := convert.KeyItem(plan.Key{ID: 1})
	item.Key = "key/2"
	if _, _, err := (&folded{}).with(&apiv1.PlanUpdate{Epoch: 1, Snapshot: true, Upsert: []*apiv1.PlanItem{item}}); err == nil {
		t.Error("a ring key 1 under key/2 was folded")
	}
}

// TestOlderPlansAreRefused: after a plan was folded, an older epoch is refused, and so is an older
// revision of the same epoch.
func TestOlderPlansAreRefused(t *testing.T) {
	f := &folded{revision: 7, epoch: 3}
	for _, c := range []struct {
		epoch, revision int64
		stale           bool
	}{{3, 6, true}, {3, 7, true}, {3, 900, true}, {4, 1, false}} {
		_, _, err := f.with(&apiv1.PlanUpdate{Epoch: c.epoch, Revision: c.revision, Rewound: true})
		if isStale(err) != c.stale {
			t.Errorf("of a state that went back: epoch %d, revision %d after 3 and 7: %v", c.epoch, c.revision, err)
		}
	}
	for _, c := range []struct {
		epoch, revision int64
		stale           bool
	}{{2, 9, true}, {3, 6, true}, {3, 7, false}, {3, 8, false}, {4, 1, false}} {
		next, _, err := f.with(&apiv1.PlanUpdate{Epoch: c.epoch, Revision: c.revision})
		if isStale(err) != c.stale || (next == nil) != c.stale {
			t.Errorf("epoch %d, revision %d after 3 and 7: %v", c.epoch, c.revision, err)
		}
	}
}

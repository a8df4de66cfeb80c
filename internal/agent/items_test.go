package agent

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestItemsAgainstAMap: after any changes the items equal a map with the same changes, and previous
// items are unchanged.
func TestItemsAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var is items
		want := map[string]*apiv1.PlanItem{}
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			var upsert []*apiv1.PlanItem
			var gone []string
			before, was := is, maps.Clone(want)
			for range rapid.IntRange(0, lateItems/2).Draw(t, "keys") {
				key := fmt.Sprint("key/", rapid.IntRange(0, 2*lateItems).Draw(t, "key"))
				if rapid.IntRange(0, 2).Draw(t, "gone") == 0 {
					gone = append(gone, key)
				} else {
					upsert = append(upsert, &apiv1.PlanItem{Key: key})
				}
			}
			for _, key := range gone {
				delete(want, key)
			}
			for _, item := range upsert {
				want[item.GetKey()] = item
			}
			is = is.with(upsert, gone)
			for _, c := range []struct {
				of   items
				want map[string]*apiv1.PlanItem
			}{{is, want}, {before, was}} {
				if got := c.of.all(); !maps.Equal(got, c.want) {
					t.Fatalf("%d items, not %d: %v, %v", len(got), len(c.want), got, c.want)
				}
			}
			for i := range 2 * lateItems {
				if key := fmt.Sprint("key/", i); is.get(key) != want[key] {
					t.Fatalf("%s is %v, not %v", key, is.get(key), want[key])
				}
			}
			byKey := func(a, b *apiv1.PlanItem) bool { return a.GetKey() < b.GetKey() }
			sorted := is.sorted()
			for i := 1; i < len(sorted); i++ {
				if !byKey(sorted[i-1], sorted[i]) {
					t.Fatalf("%s comes before %s", sorted[i-1].GetKey(), sorted[i].GetKey())
				}
			}
			if len(sorted) != len(want) || slices.Contains(sorted, nil) {
				t.Fatalf("%d items, not %d", len(sorted), len(want))
			}
		}
	})
}

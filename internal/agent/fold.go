package agent

import (
	"fmt"
	"maps"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/plan"
)

// folded is a node's plan as the sum of the updates so far.
type folded struct {
	revision, epoch int64
	items           map[string]*apiv1.PlanItem
	plan            plan.Plan // made of items
}

// staleEpoch refuses an update of a leadership term that is over.
type staleEpoch struct{ got, obeyed int64 }

func (e staleEpoch) Error() string {
	return fmt.Sprintf("plan of epoch %d: must be at least %d, which this node obeys", e.got, e.obeyed)
}

// with returns the plan after the update; f stays as it is. changed is false when only the revision moved.
func (f *folded) with(up *apiv1.PlanUpdate) (next *folded, changed bool, err error) {
	if up.GetEpoch() < f.epoch {
		return nil, false, staleEpoch{up.GetEpoch(), f.epoch}
	}
	next = &folded{revision: up.GetRevision(), epoch: up.GetEpoch(), items: f.items, plan: f.plan}
	changed = up.GetSnapshot() || len(up.GetUpsert()) > 0 || len(up.GetDelete()) > 0
	if changed {
		next.items = map[string]*apiv1.PlanItem{}
		if !up.GetSnapshot() {
			maps.Copy(next.items, f.items)
		}
		for _, key := range up.GetDelete() {
			delete(next.items, key)
		}
		for _, item := range up.GetUpsert() {
			next.items[item.GetKey()] = item
		}
		if up.GetSnapshot() {
			next.plan, err = convert.FromItems(up.GetUpsert())
		} else {
			next.plan, err = patch(f.plan, up)
		}
		if err == nil {
			err = next.plan.Whole()
		}
		if err != nil {
			return nil, false, err
		}
	}
	next.plan.Revision, next.plan.Epoch = next.revision, next.epoch
	return next, changed, nil
}

// snapshot is the plan as one update.
func (f *folded) snapshot() *apiv1.PlanUpdate {
	up := &apiv1.PlanUpdate{Revision: f.revision, Epoch: f.epoch, Snapshot: true}
	for _, key := range slices.Sorted(maps.Keys(f.items)) {
		up.Upsert = append(up.Upsert, f.items[key])
	}
	return up
}

package agent

import (
	"maps"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// items are a plan's items by key. They are immutable: with returns others, at a cost that depends
// on the size of the change, though 20,000 items are in both.
type items struct {
	// most is the base, late the changes since; nil: removed.
	most, late map[string]*apiv1.PlanItem
}

// lateItems is the maximum number of late items. They are copied at each change, and all items are
// copied once there are more.
const lateItems = 256

// get returns the item of a key; nil: there is none.
func (s items) get(key string) *apiv1.PlanItem {
	if item, is := s.late[key]; is {
		return item
	}
	return s.most[key]
}

// with returns the items after a change.
func (s items) with(upsert []*apiv1.PlanItem, gone []string) items {
	late := make(map[string]*apiv1.PlanItem, len(s.late)+len(upsert)+len(gone))
	maps.Copy(late, s.late)
	for _, key := range gone {
		late[key] = nil
	}
	for _, item := range upsert {
		late[item.GetKey()] = item
	}
	next := items{s.most, late}
	if len(late) > lateItems {
		next = items{most: next.all()}
	}
	return next
}

// all returns a new map of all items.
func (s items) all() map[string]*apiv1.PlanItem {
	out := make(map[string]*apiv1.PlanItem, len(s.most)+len(s.late))
	maps.Copy(out, s.most)
	for key, item := range s.late {
		if item == nil {
			delete(out, key)
		} else {
			out[key] = item
		}
	}
	return out
}

// sorted returns the items ordered by key.
func (s items) sorted() []*apiv1.PlanItem {
	all := s.all()
	out := make([]*apiv1.PlanItem, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[key])
	}
	return out
}

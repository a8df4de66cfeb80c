package agent

import (
	"errors"
	"fmt"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/plan"
)

// folded is a node's plan as the sum of the updates so far.
type folded struct {
	revision, epoch int64
	items           items
	plan            plan.Plan // made of items
}

// staleEpoch refuses an update of a previous leadership term.
type staleEpoch struct{ got, obeyed int64 }

func (e staleEpoch) Error() string {
	return fmt.Sprintf("plan of epoch %d: must be at least %d, which this node obeys", e.got, e.obeyed)
}

// staleRevision refuses an update that is older than the node's plan: the manager is behind others.
type staleRevision struct{ got, obeyed int64 }

func (e staleRevision) Error() string {
	return fmt.Sprintf("plan of revision %d: must be at least %d, which this node obeys: the manager is behind, or its state is an older one; "+
		"if it was put back to an older copy, restore a backup instead (shunt restore), which begins a later epoch", e.got, e.obeyed)
}

// rewoundState refuses an update of a state that was reset to an older copy within the epoch. It
// has another history than the node's plan, whatever its revision.
type rewoundState struct{ got, obeyed, epoch int64 }

func (e rewoundState) Error() string {
	return fmt.Sprintf("plan of revision %d: this node obeys revision %d of the same epoch %d, which the manager's state never had: the state is an older copy; "+
		"restart the leading manager, which begins a later epoch, to have nodes apply its state as it is now, or restore a backup (shunt restore)", e.got, e.obeyed, e.epoch)
}

// refuses returns why an update is older than the node's plan; nil: it is not.
func (f *folded) refuses(up *apiv1.PlanUpdate) error {
	switch {
	case up.GetEpoch() < f.epoch:
		return staleEpoch{up.GetEpoch(), f.epoch}
	case up.GetEpoch() == f.epoch && up.GetRewound() && f.revision > 0:
		return rewoundState{up.GetRevision(), f.revision, f.epoch}
	case up.GetEpoch() == f.epoch && up.GetRevision() < f.revision:
		return staleRevision{up.GetRevision(), f.revision}
	}
	return nil
}

// isStale reports whether an update was refused because the manager's state is older than the
// node's plan.
func isStale(err error) bool {
	return errors.As(err, new(staleEpoch)) || errors.As(err, new(staleRevision)) || errors.As(err, new(rewoundState))
}

// with returns the plan after the update; f is not modified. changed is false if only the revision
// changed.
func (f *folded) with(up *apiv1.PlanUpdate) (next *folded, changed bool, err error) {
	if err := f.refuses(up); err != nil {
		return nil, false, err
	}
	next = &folded{revision: up.GetRevision(), epoch: up.GetEpoch(), items: f.items, plan: f.plan}
	changed = up.GetSnapshot() || len(up.GetUpsert()) > 0 || len(up.GetDelete()) > 0
	if changed {
		if up.GetSnapshot() {
			next.items = items{}
		}
		next.items = next.items.with(up.GetUpsert(), up.GetDelete())
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

// snapshot returns the plan as one update.
func (f *folded) snapshot() *apiv1.PlanUpdate {
	return &apiv1.PlanUpdate{Revision: f.revision, Epoch: f.epoch, Snapshot: true, Upsert: f.items.sorted()}
}

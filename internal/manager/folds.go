package manager

import (
	"slices"
	"time"
)

// maxFolds and maxFoldKeys bound the pending changes that are kept one by one for a mux. Beyond
// them all are merged into one, so that they wait for each other.
const (
	maxFolds    = 128
	maxFoldKeys = 4096
)

// fold is a change of the view that a mux must receive in one update. Folds that share an item are
// sent together, because an update carries the newest version of each item.
type fold struct {
	// first and last are the revisions of the view that the fold covers.
	first, last int64
	keys        []string
	// wide reports that it may concern any item. A wide fold is the only one of a mux.
	wide bool
	// hosts is the newest of these revisions that changed bindings of hosts; 0 if none did.
	hosts int64
	// at is the time of its first check; zero before.
	at time.Time
}

// about reports whether the fold may concern one of the items.
func (f *fold) about(keys map[string]bool) bool {
	return f.wide && len(keys) > 0 || slices.ContainsFunc(f.keys, func(k string) bool { return keys[k] })
}

// addFold adds a change for a mux. A change of the last fold's revision becomes part of that fold.
func addFold(folds []fold, f fold) []fold {
	if n := len(folds); n > 0 && !f.wide && !folds[n-1].wide && folds[n-1].last == f.last {
		last := &folds[n-1]
		// a new list, because sessions share them
		last.keys, last.hosts = slices.Concat(last.keys, f.keys), max(last.hosts, f.hosts)
	} else {
		folds = append(folds, f)
	}
	keys := 0
	for i := range folds {
		keys += len(folds[i].keys)
	}
	if len(folds) == 1 || !folds[0].wide && !f.wide && len(folds) <= maxFolds && keys <= maxFoldKeys {
		return folds
	}
	one := fold{first: folds[0].first, last: f.last, wide: true, at: folds[0].at}
	for i := range folds {
		one.hosts = max(one.hosts, folds[i].hosts)
	}
	return []fold{one}
}

// withSharers returns the marked folds and all that share items with them, directly or through
// others.
func withSharers(folds []fold, marked []bool) []bool {
	out := make([]bool, len(folds))
	keys := map[string]bool{}
	for again := true; again; {
		again = false
		for i := range folds {
			if out[i] || !marked[i] && !folds[i].about(keys) {
				continue
			}
			out[i], again = true, true
			for _, k := range folds[i].keys {
				keys[k] = true
			}
		}
	}
	return out
}

// split divides folds into those that may be sent and those that are held. An overdue fold is
// released with all folds that share items with it.
func split(folds []fold, blocked, overdue []bool) (free, held []fold) {
	released := withSharers(folds, overdue)
	holding := make([]bool, len(folds))
	for i := range folds {
		holding[i] = blocked[i] && !released[i]
	}
	holding = withSharers(folds, holding)
	for i := range folds {
		if holding[i] {
			held = append(held, folds[i])
		} else {
			free = append(free, folds[i])
		}
	}
	return free, held
}

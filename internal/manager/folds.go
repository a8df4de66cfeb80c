package manager

import (
	"slices"
	"time"
)

// maxFolds and maxFoldKeys bound what a mux remembers, one by one, of changes that it has not heard of. When it is more, they
// wait for each other.
const (
	maxFolds    = 128
	maxFoldKeys = 4096
)

// fold is a change of the view of which a mux must hear at once. Folds that share an item are told together: an update
// carries the newest of each.
type fold struct {
	// first and last are the revisions of the view that it is of.
	first, last int64
	keys        []string
	// wide: it may be about any item. A wide fold is the only one that a mux has.
	wide bool
	// hosts is the newest of these revisions that changed bindings of hosts; 0: none did.
	hosts int64
	// at is when it was looked at first; zero before.
	at time.Time
}

// about tells whether the fold may be about one of the items.
func (f *fold) about(keys map[string]bool) bool {
	return f.wide && len(keys) > 0 || slices.ContainsFunc(f.keys, func(k string) bool { return keys[k] })
}

// addFold notes a change for a mux; one of the same revision as the last one is part of it.
func addFold(folds []fold, f fold) []fold {
	if n := len(folds); n > 0 && !f.wide && !folds[n-1].wide && folds[n-1].last == f.last {
		last := &folds[n-1]
		last.keys, last.hosts = slices.Concat(last.keys, f.keys), max(last.hosts, f.hosts) // sessions share lists
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

// withSharers are marked folds and all that share items with them, directly or by others.
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

// split parts folds into those that may be told and those that are held. What is overdue goes with all that shares items with it.
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

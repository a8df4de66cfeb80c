package manager

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/notify"
)

// funnel coalesces values that wait to be written. Equal pending values are merged, and repeated
// ones are released at a steady pace, so that a flood costs bounded memory and bounded writes. It
// is safe for concurrent use.
type funnel[T any] struct {
	funnelRules[T]

	mu      sync.Mutex
	waiting map[string]*waiter[T]
	order   []*waiter[T] // by arrival
	// groups counts the pending values of each group. served is the number of takes when a value of
	// the group was last taken.
	groups  map[string]int
	served  map[string]uint64
	takes   uint64
	credits map[string]credit
	// wake is signalled when a value waits, crowd when batch values wait. Both have room for one.
	wake, crowd chan struct{}
}

// funnelRules are the parameters of a funnel.
type funnelRules[T any] struct {
	// merge returns the value that replaces two equal ones; old was put first.
	merge func(old, now T) T
	// overflow renames a value that arrives when limit values wait, so that it merges with others.
	overflow func(T) (string, T)
	limit    int
	batch    int
	// group, if not nil, returns the owner of a value. At most share values of a group wait;
	// further ones are merged under the name that rest returns. At limit, a group with fewer values
	// takes a place of the group with most. take serves the groups in turn. So no group can
	// displace the values of another, however many it puts.
	group func(T) string
	share int
	rest  func(group string, v T) (string, T)
	// Equal values are released burst times, and then one per pace.
	burst int
	pace  time.Duration
}

type waiter[T any] struct {
	key   string
	value T
	group string
	// rest reports that this is the merged value of its group.
	rest bool
}

// credit is how often a value may be released, as of a time.
type credit struct {
	left float64
	at   time.Time
}

func newFunnel[T any](r funnelRules[T]) *funnel[T] {
	return &funnel[T]{
		funnelRules: r, waiting: map[string]*waiter[T]{}, credits: map[string]credit{}, groups: map[string]int{}, served: map[string]uint64{},
		wake: make(chan struct{}, 1), crowd: make(chan struct{}, 1),
	}
}

// put adds a value. Values with equal keys are equal.
func (f *funnel[T]) put(key string, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &waiter[T]{key: key, value: v}
	if f.group != nil {
		w.group = f.group(v)
	}
	if f.waiting[w.key] == nil && f.group != nil && f.groups[w.group] >= f.share {
		f.joinRest(w)
	}
	if f.waiting[w.key] == nil && len(f.waiting) >= f.limit && !f.makeRoom(w.group) {
		w.key, w.value = f.overflow(w.value)
		w.group, w.rest = "", true
	}
	if old := f.waiting[w.key]; old != nil {
		old.value = f.merge(old.value, w.value)
		return
	}
	f.waiting[w.key] = w
	f.groups[w.group]++
	f.order = append(f.order, w)
	notify.Send(f.wake)
	if len(f.order) >= f.batch {
		notify.Send(f.crowd)
	}
}

// joinRest renames a value so that it merges into the rest of its group.
func (f *funnel[T]) joinRest(w *waiter[T]) {
	w.key, w.value = f.rest(w.group, w.value)
	w.rest = true
}

// makeRoom merges values of the group with most until one more value fits. It returns false if no
// group has clearly more than this one.
func (f *funnel[T]) makeRoom(group string) bool {
	most := group
	for g, n := range f.groups {
		if g != "" && n > max(2, f.groups[most]+1) {
			most = g
		}
	}
	if most == group {
		return false
	}
	for i := len(f.order) - 1; i >= 0 && len(f.waiting) >= f.limit; i-- {
		w := f.order[i]
		if w.group != most || w.rest {
			continue
		}
		delete(f.waiting, w.key)
		f.joinRest(w)
		if old := f.waiting[w.key]; old != nil {
			old.value = f.merge(old.value, w.value)
			f.order = slices.Delete(f.order, i, i+1)
			f.leaveGroup(most)
		} else {
			f.waiting[w.key] = w
		}
	}
	return len(f.waiting) < f.limit
}

func (f *funnel[T]) leaveGroup(group string) {
	if f.groups[group]--; f.groups[group] <= 0 {
		delete(f.groups, group)
		delete(f.served, group)
	}
}

// take returns at most most of the values that may be released now: of each group in turn, and
// within a group in order of arrival. left is the number that still wait. next is the time at which
// one of them may be released; it is zero if one already may, or if none waits.
func (f *funnel[T]) take(now time.Time, most int) (out []T, left int, next time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ready []*waiter[T]
	for _, w := range f.order {
		if c := f.creditLocked(w.key, now); c.left >= 1 {
			ready = append(ready, w)
		} else if at := now.Add(time.Duration((1 - c.left) * float64(f.pace))); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	taken := make(map[*waiter[T]]bool, min(most, len(ready)))
	for _, w := range f.inTurn(ready)[:min(most, len(ready))] {
		c := f.creditLocked(w.key, now)
		c.left--
		f.credits[w.key] = c
		delete(f.waiting, w.key)
		taken[w] = true
		f.takes++
		f.served[w.group] = f.takes
		f.leaveGroup(w.group)
		out = append(out, w.value)
	}
	f.order = slices.DeleteFunc(f.order, func(w *waiter[T]) bool { return taken[w] })
	if len(taken) < len(ready) {
		next = time.Time{}
	}
	f.forgetLocked(now)
	return out, len(f.order), next
}

// inTurn orders values by how many of their group come before, then by when their group was last
// served, then by arrival.
func (f *funnel[T]) inTurn(ready []*waiter[T]) []*waiter[T] {
	if f.group == nil {
		return ready
	}
	seen, rank := map[string]int{}, make(map[*waiter[T]]int, len(ready))
	for _, w := range ready {
		rank[w] = seen[w.group]
		seen[w.group]++
	}
	slices.SortStableFunc(ready, func(a, b *waiter[T]) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(f.served[a.group], f.served[b.group]))
	})
	return ready
}

func (f *funnel[T]) creditLocked(key string, now time.Time) credit {
	c, ok := f.credits[key]
	if !ok {
		return credit{float64(f.burst), now}
	}
	if passed := now.Sub(c.at); passed > 0 {
		c.left = min(float64(f.burst), c.left+float64(passed)/float64(f.pace))
		c.at = now
	}
	return c
}

// forgetLocked bounds the credits. It deletes full ones, which need no memory, and if that is not
// enough also others, which makes these full.
func (f *funnel[T]) forgetLocked(now time.Time) {
	if len(f.credits) <= 2*f.limit {
		return
	}
	for key := range f.credits {
		if f.creditLocked(key, now).left >= float64(f.burst) {
			delete(f.credits, key)
		}
	}
	for key := range f.credits {
		if len(f.credits) <= f.limit {
			return
		}
		delete(f.credits, key)
	}
}

// drop discards all pending values.
func (f *funnel[T]) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting, f.order = map[string]*waiter[T]{}, nil
	f.groups, f.served = map[string]int{}, map[string]uint64{}
}

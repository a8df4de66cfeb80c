package manager

import (
	"sync"
	"time"
)

// funnel is where things wait until they are written. Equal ones that wait are put together; what keeps coming is
// written at a steady pace, so that a flood costs bounded memory and bounded writes. It is safe for concurrent use.
type funnel[T any] struct {
	funnelRules[T]

	mu      sync.Mutex
	waiting map[string]*waiter[T]
	order   []*waiter[T] // by arrival
	credits map[string]credit
	// wake says that something waits, crowd that batch of them do. Both have room for one.
	wake, crowd chan struct{}
}

// funnelRules are what a funnel keeps to.
type funnelRules[T any] struct {
	// merge returns one thing for two equal ones; old came first.
	merge func(old, now T) T
	// overflow renames a thing that comes when limit of them wait: it is put together with others.
	overflow func(T) (string, T)
	limit    int
	batch    int
	// Equal things come through burst times, and then one each pace.
	burst int
	pace  time.Duration
}

type waiter[T any] struct {
	key   string
	value T
}

// credit is how often a thing may come through, as of a time.
type credit struct {
	left float64
	at   time.Time
}

func newFunnel[T any](r funnelRules[T]) *funnel[T] {
	return &funnel[T]{
		funnelRules: r, waiting: map[string]*waiter[T]{}, credits: map[string]credit{},
		wake: make(chan struct{}, 1), crowd: make(chan struct{}, 1),
	}
}

// put adds a thing; things with equal keys are equal.
func (f *funnel[T]) put(key string, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.waiting[key]; w == nil && len(f.waiting) >= f.limit {
		key, v = f.overflow(v)
	}
	if w := f.waiting[key]; w != nil {
		w.value = f.merge(w.value, v)
		return
	}
	w := &waiter[T]{key, v}
	f.waiting[key] = w
	f.order = append(f.order, w)
	signal(f.wake)
	if len(f.order) >= f.batch {
		signal(f.crowd)
	}
}

// take returns at most most of the things that may come through now, in the order of their arrival. left tells how many
// still wait, next when one of them may come through; it is zero when one may at once, or none waits.
func (f *funnel[T]) take(now time.Time, most int) (out []T, left int, next time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rest, ready := f.order[:0], false
	for _, w := range f.order {
		c := f.creditLocked(w.key, now)
		switch {
		case c.left < 1:
			at := now.Add(time.Duration((1 - c.left) * float64(f.pace)))
			if next.IsZero() || at.Before(next) {
				next = at
			}
			rest = append(rest, w)
		case len(out) >= most:
			ready = true
			rest = append(rest, w)
		default:
			c.left--
			f.credits[w.key] = c
			delete(f.waiting, w.key)
			out = append(out, w.value)
		}
	}
	clear(f.order[len(rest):])
	f.order = rest
	if ready {
		next = time.Time{}
	}
	f.forgetLocked(now)
	return out, len(rest), next
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

// forgetLocked bounds the credits: one that is whole needs no memory. When that is not enough some are given back.
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

// drop forgets everything that waits.
func (f *funnel[T]) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting, f.order = map[string]*waiter[T]{}, nil
}

// signal wakes whoever waits for the channel, which has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

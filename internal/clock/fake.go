package clock

import (
	"sync"
	"time"
)

// Fake is a clock that only moves on request. It is safe for concurrent use.
type Fake struct {
	mu     sync.Mutex
	now    time.Time
	timers []fakeTimer
}

type fakeTimer struct {
	at time.Time
	c  chan time.Time
}

// NewFake returns a clock at the given time.
func NewFake(now time.Time) *Fake { return &Fake{now: now} }

// Now implements Clock.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// After implements Clock.
func (f *Fake) After(d time.Duration) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan time.Time, 1)
	if d <= 0 {
		c <- f.now
		return c
	}
	f.timers = append(f.timers, fakeTimer{f.now.Add(d), c})
	return c
}

// Advance moves the clock and fires the timers that are due.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	left := f.timers[:0]
	for _, t := range f.timers {
		if t.at.After(f.now) {
			left = append(left, t)
			continue
		}
		t.c <- f.now
	}
	f.timers = left
}

// Waiting counts the timers that have not fired.
func (f *Fake) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.timers)
}

// Package clock abstracts time, so that decision code and tests can replace it.
package clock

import "time"

// Clock returns the time and creates timers.
type Clock interface {
	Now() time.Time
	// After delivers the time once, after d.
	After(d time.Duration) <-chan time.Time
}

// System is the machine's clock.
type System struct{}

// Now implements Clock.
func (System) Now() time.Time { return time.Now() }

// After implements Clock.
func (System) After(d time.Duration) <-chan time.Time { return time.After(d) }

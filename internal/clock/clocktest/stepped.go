// Package clocktest has clocks for tests only.
package clocktest

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Stepped is the clock of a machine whose time of day is set repeatedly: the wall clock jumps, the
// monotonic clock does not. It is safe for concurrent use, and in bubbles of testing/synctest,
// whose own times have no monotonic reading.
type Stepped struct {
	begun   time.Time
	seconds atomic.Int64
}

// origin has a monotonic reading, because it is read outside of bubbles.
var origin = time.Now()

// NewStepped returns a clock whose time of day was not changed yet.
func NewStepped() *Stepped { return &Stepped{begun: time.Now()} }

// Step sets the time of day forward by seconds.
func (s *Stepped) Step(seconds int64) { s.seconds.Add(seconds) }

// wallSeconds is the bit position of the seconds in the first field of a time.Time with a monotonic
// reading.
const wallSeconds = 30

// Now implements clock.Clock.
func (s *Stepped) Now() time.Time {
	before, step := origin.Add(time.Since(s.begun)), s.seconds.Load()
	now := before
	*(*uint64)(unsafe.Pointer(&now)) += uint64(step) << wallSeconds
	if now.Sub(before) != 0 || now.Unix()-before.Unix() != step {
		panic("clocktest: a time.Time is made otherwise than it was")
	}
	return now
}

// After implements clock.Clock.
func (s *Stepped) After(d time.Duration) <-chan time.Time { return time.After(d) }

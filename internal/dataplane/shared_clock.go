package dataplane

import (
	"time"

	"golang.org/x/sys/unix"
)

// clockAhead is how far the clock that muxes and hosts share, UTC, is ahead of CLOCK_MONOTONIC. Timestamps of form CO are made and read with it: machines
// have to agree within cookie.OffsetGuard.
func clockAhead() time.Duration {
	var wall unix.Timespec
	unix.ClockGettime(unix.CLOCK_REALTIME, &wall) //nolint:errcheck // the clock is always there
	return time.Duration(wall.Nano()) - monotonic()
}

// sharedClock is that clock in milliseconds.
func sharedClock() uint32 { return uint32((clockAhead() + monotonic()) / time.Millisecond) }

package cookie

import "time"

const (
	// OffsetTimeBits is the number of bits below the cookie in a timestamp of form CO (protocol
	// section 1.4): the shared clock in milliseconds plus cookie << OffsetTimeBits.
	OffsetTimeBits = 32 - ShortBits
	// OffsetGuard is how far an echo may seem to be ahead of the reader's clock.
	OffsetGuard = 2000 * time.Millisecond
	// OffsetReach is how old an echo may be for its cookie to be read: 17.4 minutes.
	OffsetReach = (1 << OffsetTimeBits * time.Millisecond) - OffsetGuard
)

// PlaceOffset returns the timestamp of form CO for clock, in milliseconds, with a cookie of
// EncodeShort.
func PlaceOffset(clock uint32, cookie uint16) uint32 { return clock + uint32(cookie)<<OffsetTimeBits }

// OffsetCookie returns the cookie in a timestamp of form CO that was made at most OffsetReach ago,
// by a clock that is at most OffsetGuard ahead of this one.
func OffsetCookie(stamp, clock uint32) uint16 {
	return uint16((stamp - clock - uint32(OffsetGuard/time.Millisecond) + 1<<OffsetTimeBits - 1) >> OffsetTimeBits)
}

package cookie

// TimeBits is n, the number of time bits in a timestamp; the other 32-n are the cookie (SPLIT,
// protocol section 1.2). It is 8 to 20, because with fewer bits kernel SYN cookies would lose the
// data in their lowest 6 bits.
type TimeBits uint8

const (
	// HostBits is the n of stamps that hosts make and muxes read (EVC, protocol section 1.3): Half
	// is 32.8 s of milliseconds.
	HostBits TimeBits = 16
	// MinTimeBits and MaxTimeBits bound n.
	MinTimeBits TimeBits = 8
	MaxTimeBits TimeBits = 20
)

// Half returns H: the number of ticks that a stamp may be ahead of the newest one at the other side
// without being considered older (Lemma 1).
func (n TimeBits) Half() uint32 { return 1 << (n - 1) }

// Place returns the timestamp with a cookie of 32-n bits and the lowest n bits of the virtual time,
// the highest of which is the timestamp's top bit. It is never 0, which means "no echo"; time 0
// with cookie 0 becomes 1.
func (n TimeBits) Place(time, cookie uint32) uint32 {
	stamp := time>>(n-1)&1<<31 | cookie<<(n-1)&(1<<31-1) | time&(n.Half()-1)
	return max(stamp, 1)
}

// Unplace returns the time in a timestamp: the lowest n bits of the virtual time.
func (n TimeBits) Unplace(stamp uint32) uint32 { return stamp>>31<<(n-1) | stamp&(n.Half()-1) }

// Cookie returns the cookie in a timestamp: 32-n bits.
func (n TimeBits) Cookie(stamp uint32) uint32 { return stamp & (1<<31 - 1) >> (n - 1) }

package cookie

// TimeBits is n, the number of bits of a timestamp that are time; the other 32-n are the cookie (SPLIT, protocol section 1.2). From 8 to 20: below, kernel
// SYN cookies would lose what they keep in the lowest 6 bits.
type TimeBits uint8

const (
	// HostBits is the n of stamps that hosts make and muxes read (EVC, protocol section 1.3): Half is 32.8 s of milliseconds.
	HostBits TimeBits = 16
	// MinTimeBits and MaxTimeBits bound n.
	MinTimeBits TimeBits = 8
	MaxTimeBits TimeBits = 20
)

// Half is H: how many ticks a stamp may be ahead of the newest one that the other side has, so that it never reads as older (Lemma 1).
func (n TimeBits) Half() uint32 { return 1 << (n - 1) }

// Place is the timestamp that carries a cookie of 32-n bits beside the lowest n bits of the virtual time; the highest of these is its top bit. It is never
// 0, which as an echo says that there is none; time 0 with cookie 0 becomes 1.
func (n TimeBits) Place(time, cookie uint32) uint32 {
	stamp := time>>(n-1)&1<<31 | cookie<<(n-1)&(1<<31-1) | time&(n.Half()-1)
	return max(stamp, 1)
}

// Unplace is the time in a timestamp: the lowest n bits of the virtual time.
func (n TimeBits) Unplace(stamp uint32) uint32 { return stamp>>31<<(n-1) | stamp&(n.Half()-1) }

// Cookie is the cookie in a timestamp: 32-n bits.
func (n TimeBits) Cookie(stamp uint32) uint32 { return stamp & (1<<31 - 1) >> (n - 1) }

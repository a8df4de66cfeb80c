package cookie

// SplitBits is how timestamps of forms SPLIT-R and SPLIT-Z (protocol section 1.4) are divided: the lowest 20 bits of the server's own, and a cookie of
// EncodeShort. The C twin is bpf/lib/split.h.
const SplitBits = TimeBits(32 - ShortBits)

// RestoreSplit is the server's timestamp that became stamp by SplitBits.Place; newest is its newest one, at most 2^20 - 1 later.
func RestoreSplit(stamp, newest uint32) uint32 {
	return newest - (newest-SplitBits.Unplace(stamp))&(1<<SplitBits-1)
}

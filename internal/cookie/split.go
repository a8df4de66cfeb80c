package cookie

// SplitBits divides timestamps of forms SPLIT-R and SPLIT-Z (protocol section 1.4): the lowest 20
// bits of the server's own, and a cookie of EncodeShort. The C twin is bpf/lib/split.h.
const SplitBits = TimeBits(32 - ShortBits)

// RestoreSplit returns the server's timestamp from which SplitBits.Place made stamp; newest is the
// server's newest one, at most 2^20 - 1 later.
func RestoreSplit(stamp, newest uint32) uint32 {
	return newest - (newest-SplitBits.Unplace(stamp))&(1<<SplitBits-1)
}

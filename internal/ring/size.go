package ring

import "math/bits"

const (
	// slotsPerBackend is the minimum number of slots of a backend: one slot is then at most 1 % of
	// its share.
	slotsPerBackend = 100
	// lightest limits the cost of a backend far lighter than the mean: slots for up to 16 times the
	// members.
	lightest = 16
	// shrinkBy is how much too large a ring must be, in powers of two, before it shrinks.
	shrinkBy = 3
)

// SizeCode returns the size code for members of these weights; zero weights do not count. previous
// is the endpoint's current code, 0 if there is none. Resizing moves most flows, so a ring grows
// only when it must and shrinks only when it is eight times too large. In between the result
// depends on the previous code; therefore only the plan computes it.
func SizeCode(weights []uint16, previous uint8) uint8 {
	wanted := wantedCode(weights)
	if previous < CodeMin || previous > CodeMax || wanted > previous || wanted+shrinkBy <= previous {
		return wanted
	}
	return previous
}

func wantedCode(weights []uint16) uint8 {
	var n, sum, least uint64
	for _, w := range weights {
		if w == 0 {
			continue
		}
		n, sum = n+1, sum+uint64(w)
		if least == 0 || uint64(w) < least {
			least = uint64(w)
		}
	}
	if n == 0 {
		return CodeMin
	}
	units := min((sum+least-1)/least, n*lightest)
	code := bits.Len64(units*slotsPerBackend - 1)
	return uint8(min(max(code, CodeMin), CodeMax))
}

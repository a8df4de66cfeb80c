package ring

import "math/bits"

const (
	// slotsPerBackend is what a backend should have at least: one slot is then at most 1 % of its share.
	slotsPerBackend = 100
	// lightest bounds what a backend far lighter than the mean may cost: slots for up to 16 times the members.
	lightest = 16
	// shrinkBy is how much too large a ring must be, in powers of two, before it shrinks.
	shrinkBy = 3
)

// SizeCode is the size code for members of these weights; zero weights do not count. previous is the endpoint's present
// code, 0 when it has none. Resizing moves most flows, so a ring grows only when it must and shrinks only when it is
// eight times too large; within that, the result depends on the past, and is therefore decided once, in the plan.
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

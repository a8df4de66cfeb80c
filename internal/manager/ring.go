package manager

// Ring sizes as powers of two, and slots per member for an even spread.
const (
	minRingCode    = 6
	maxRingCode    = 17
	slotsPerMember = 64
)

// ringSize gives every member at least slotsPerMember slots; it never shrinks a ring that is at most four times too
// large.
func ringSize(weights []uint16, previous uint8) uint8 {
	code := uint8(minRingCode)
	for code < maxRingCode && 1<<code < slotsPerMember*len(weights) {
		code++
	}
	if previous > code && previous <= code+2 {
		return previous
	}
	return code
}

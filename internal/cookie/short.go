package cookie

const (
	// MaxShortID is the largest member id that fits into a cookie of 12 bits.
	MaxShortID = shortPrime - 1
	// ShortBits is the width of such a cookie.
	ShortBits = 12
	// shortPrime is the largest below 1 << shortKidShift.
	shortPrime = 2039

	shortKidShift = ShortBits - 1
)

// EncodeShort returns the cookie of 12 bits, for forms with 20 bits of time (protocol section 1.4),
// of member id, at most MaxShortID, under key kid, 0 or 1. It works as Encode, modulo another
// prime.
func EncodeShort(prf uint64, kid uint8, id uint16, secret Secret) uint16 {
	y := secret.shuffled(uint32(id), shortKidShift, shortPrime) % shortPrime
	return uint16(kid&1)<<shortKidShift | uint16(write(prf, y, shortKidShift, shortPrime))
}

// DecodeShort returns the member id in a cookie of EncodeShort; false when it is invalid. PRF and
// secret must be those of the key named by ShortKeyID.
func DecodeShort(prf uint64, cookie uint16, secret Secret) (id uint16, ok bool) {
	x := uint32(cookie) & (1<<shortKidShift - 1)
	if x >= shortPrime {
		return 0, false
	}
	return uint16(secret.ordered(read(prf, x, shortKidShift, shortPrime), shortKidShift, shortPrime)), true
}

// ShortKeyID returns the id of the key that a cookie of EncodeShort was made with.
func ShortKeyID(cookie uint16) uint8 { return uint8(cookie >> shortKidShift & 1) }

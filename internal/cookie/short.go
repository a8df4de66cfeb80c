package cookie

const (
	// ShortIDBits is the width of the member ids that fit into a cookie of 12 bits, MaxShortID the largest of them.
	ShortIDBits = 8
	MaxShortID  = 1<<ShortIDBits - 1
	// ShortBits is the width of such a cookie.
	ShortBits = 1 + ShortIDBits + CheckBits

	shortKidShift  = ShortIDBits + CheckBits
	shortRightBits = 5
	shortRightMask = 1<<shortRightBits - 1
	shortLeftMask  = 1<<(shortKidShift-shortRightBits) - 1
)

// EncodeShort is the cookie of 12 bits, as forms with 20 bits of time have it (protocol section 1.4), of member id, at most MaxShortID, under key kid, 0 or 1:
// kid | P, where P is the id and CheckBits zeros under four Feistel rounds over the upper 6 and the lower 5 bits.
func EncodeShort(prf uint64, kid uint8, id uint16) uint16 {
	plain := uint32(id&MaxShortID) << CheckBits
	l, r := plain>>shortRightBits, plain&shortRightMask
	r ^= round(l, prf) & shortRightMask
	l ^= round(r, prf>>16) & shortLeftMask
	r ^= round(l, prf>>32) & shortRightMask
	l ^= round(r, prf>>48) & shortLeftMask
	return uint16(kid&1)<<shortKidShift | uint16(l<<shortRightBits|r)
}

// DecodeShort is the member id that a cookie of EncodeShort names; false when its check bits are wrong. The PRF is that of the key which ShortKeyID says.
func DecodeShort(prf uint64, cookie uint16) (id uint16, ok bool) {
	l, r := uint32(cookie)>>shortRightBits&shortLeftMask, uint32(cookie)&shortRightMask
	l ^= round(r, prf>>48) & shortLeftMask
	r ^= round(l, prf>>32) & shortRightMask
	l ^= round(r, prf>>16) & shortLeftMask
	r ^= round(l, prf) & shortRightMask
	plain := l<<shortRightBits | r
	return uint16(plain >> CheckBits), plain&checkMask == 0
}

// ShortKeyID is the id of the key that a cookie of EncodeShort was made with.
func ShortKeyID(cookie uint16) uint8 { return uint8(cookie >> shortKidShift & 1) }

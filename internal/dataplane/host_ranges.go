package dataplane

import (
	"math/bits"
	"unsafe"

	"github.com/shuntlb/shunt/internal/lb"
)

// prefixBits is PREFIX_BITS of bpf/abi.h: the bits of a key before its port.
const prefixBits = 8 * uint32(unsafe.Offsetof(hostBindingKey{}.PortBe))

// rangePrefixes cuts the ports first to last into the fewest blocks that begin with the same bits: at most 30, one for
// all ports. Ranges of one member are disjoint, but for all ports; where they are not, the smaller block wins.
func rangePrefixes(key hostBindingKey, first, last uint16) []hostBindingPrefix {
	var out []hostBindingPrefix
	for at, end := uint32(first), uint32(last)+1; at < end; {
		size := lb.PortBlock(at, end)
		key.PortBe = be16(uint16(at))
		out = append(out, hostBindingPrefix{Bits: prefixBits + 16 - uint32(bits.TrailingZeros32(size)), Key: key})
		at += size
	}
	return out
}

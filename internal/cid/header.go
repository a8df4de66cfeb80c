package cid

// Header is what the first packet of a datagram says of connections, whatever its version (RFC 8999): packets that share a datagram are of one
// connection (RFC 9000 section 12.2). The fixed bit means nothing (RFC 9287).
type Header struct {
	Long bool
	// DCID is the destination's connection id. A short header does not say where it ends: it is all that follows then.
	DCID []byte
	// SCID is the source's, of a long header.
	SCID []byte
}

// longHeader is the octets of a long header in front of the destination's connection id: flags, version, length.
const longHeader = 6

// Parse reads the payload of a UDP datagram; false when it has no header of QUIC, or one with connection ids longer than MaxLength. DCID of a long
// header is there also when what follows it cannot be read.
func Parse(datagram []byte) (h Header, ok bool) {
	if len(datagram) == 0 {
		return h, false
	}
	if datagram[0]&0x80 == 0 {
		return Header{DCID: datagram[1:]}, true
	}
	h.Long = true
	if len(datagram) < longHeader {
		return h, false
	}
	rest := datagram[longHeader:]
	length := int(datagram[longHeader-1])
	if length > MaxLength || length > len(rest) {
		return h, false
	}
	h.DCID, rest = rest[:length], rest[length:]
	if len(rest) == 0 || rest[0] > MaxLength || int(rest[0]) > len(rest)-1 {
		return h, false
	}
	h.SCID = rest[1 : 1+rest[0]]
	return h, true
}

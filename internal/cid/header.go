package cid

// Header holds the connection ids of the first packet of a datagram, for any version (RFC 8999):
// packets that share a datagram belong to one connection (RFC 9000 section 12.2). The fixed bit is
// ignored (RFC 9287).
type Header struct {
	Long bool
	// DCID is the destination connection id. A short header does not encode its length, so it is
	// then the rest of the datagram.
	DCID []byte
	// SCID is the source connection id of a long header.
	SCID []byte
}

// longHeader is the number of octets of a long header before the destination connection id: flags,
// version, length.
const longHeader = 6

// Parse parses the payload of a UDP datagram; false if it has no QUIC header, or one with
// connection ids longer than MaxLength. DCID of a long header is set even if the rest is malformed.
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

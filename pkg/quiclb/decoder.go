package quiclb

import "fmt"

// Decoder is a balancer's side: it knows all schemes that are in use and finds the server of any connection id. It is safe for concurrent use.
type Decoder struct {
	byID  [MaxID + 1]*Codec
	fixed *Codec // of a format without config ids; then there is no other
}

// NewDecoder returns the decoder of valid schemes with different config ids. A format without them must be the only one.
func NewDecoder(schemes ...Scheme) (*Decoder, error) {
	d := &Decoder{}
	for i, s := range schemes {
		c, err := NewCodec(s)
		if err != nil {
			return nil, fmt.Errorf("schemes[%d].%w", i, err)
		}
		if s.Format == Msquic || s.Format == Mvfst {
			if len(schemes) > 1 {
				return nil, fmt.Errorf("schemes[%d].format: %s: must be the only scheme", i, s.Format)
			}
			d.fixed = c
			continue
		}
		if d.byID[s.ID] != nil {
			return nil, fmt.Errorf("schemes[%d].id: %d: must be unique", i, s.ID)
		}
		d.byID[s.ID] = c
	}
	return d, nil
}

// ServerID returns the server id that a connection id names; false: it names none, because it is too short or of no scheme that is known. Whether there is
// such a server is for the caller to know: what a client makes up for its first packets names some server, too.
func (d *Decoder) ServerID(cid []byte) ([]byte, bool) {
	c := d.fixed
	if c == nil {
		if len(cid) == 0 || cid[0]>>5 > MaxID {
			return nil, false
		}
		c = d.byID[cid[0]>>5]
	}
	if c == nil {
		return nil, false
	}
	id, _, err := c.Decode(cid)
	return id, err == nil
}

// Destination returns the destination connection id of the first packet in a datagram, by the invariants of QUIC alone (RFC 8999 section 5). A short header does not
// tell its length: the next length bytes are returned, or what there is. False: this is no QUIC packet.
func Destination(datagram []byte, length int) (cid []byte, long, ok bool) {
	if len(datagram) < 2 {
		return nil, false, false
	}
	if datagram[0]&0x80 == 0 {
		return datagram[1:min(1+length, len(datagram))], false, true
	}
	// One octet of flags, four of version, then the length.
	const at = 6
	if len(datagram) < at || len(datagram) < at+int(datagram[at-1]) {
		return nil, false, false
	}
	return datagram[at : at+int(datagram[at-1])], true, true
}

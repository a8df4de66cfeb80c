package quiclb

import "fmt"

// Decoder is the balancer's side: it holds all schemes in use and finds the server of a connection
// id. It is safe for concurrent use.
type Decoder struct {
	byID  [MaxID + 1]*Codec
	fixed *Codec // codec of a format without config ids, which is then the only one
}

// NewDecoder returns the decoder of valid schemes with different config ids. A format without
// config ids must be the only one.
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

// ServerID returns the server id in a connection id; false: the id is too short or belongs to no
// scheme. The caller must check whether the server exists, because the random ids in a client's
// first packets decode to some server, too.
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

// Destination returns the destination connection id of the first packet in a datagram, by the
// invariants of QUIC alone (RFC 8999 section 5). A short header does not encode the id's length:
// the next length bytes are returned, or as many as there are. False: this is not a QUIC packet.
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

package benchrun

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/cid"
)

const (
	// cids is the number of connection ids in use (CIDS of bpf/bench/front.bpf.c).
	cids = 1 << 12
	// quicLen is the length of the UDP header and a packet of QUIC: flags, a connection id of 17 octets, and what headers are protected by (RFC 9001 section 5.4.2).
	quicLen  = 8 + 1 + 17 + 20
	protoUDP = 17
)

// templateQUIC is the frame whose addresses, ports and connection id the front program fills in.
func templateQUIC() []byte {
	frame := make([]byte, ethLen+ip4Len+quicLen)
	ethernet(frame, 0x0800)
	ip := frame[ethLen:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[8], ip[9] = ttl, protoUDP
	udp := ip[ip4Len:]
	binary.BigEndian.PutUint16(udp[2:], Port)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	udp[8] = 0x40
	return frame
}

// cid is connection id number n, as a server writes it.
func (t Traffic) cid(n uint32) []byte {
	var fill [cid.MaxLength]byte
	for i := range fill {
		fill[i] = byte(uint64(n+1) * 0x9e3779b97f4a7c15 >> (8 * (i % 7)) * uint64(i+1))
	}
	return t.CIDs.Mint(0, memberOf(n, t.QUIC), fill)
}

// writeCIDs gives the front program its connection ids.
func (h *Harness) writeCIDs() error {
	keys, values := make([]uint32, cids), make([]frontFrontCid, cids)
	for n := range uint32(cids) {
		var b [24]byte
		copy(b[:], h.traffic.cid(n))
		keys[n] = n
		values[n].Lo, values[n].Mid, values[n].Hi = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[16:])
	}
	if _, err := h.front.Cids.BatchUpdate(keys, values, &ebpf.BatchOptions{}); err != nil {
		return fmt.Errorf("write connection ids: %w", err)
	}
	return nil
}

package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/shuntlb/shunt/internal/wire"
)

// Tunnel is the way of a member's packets to its server.
type Tunnel struct {
	Outer  netip.Addr
	Encap  Encap
	Member uint16 // GUE names it
	// Sources are the tunnel sources of the Network where the mux stands, Hash is what they vary with.
	Sources []netip.Prefix
	Hash    uint64
}

// Header is the outer headers that the program puts in front of an inner packet of `length` bytes with TOS 0, of IPv4 or else of
// IPv6, whose flow has the hash.
func (t Tunnel) Header(inner4 bool, length int) ([]byte, error) {
	source := outerSource(t.Sources, t.Outer.Is4(), t.Hash)
	if !source.IsValid() {
		return nil, fmt.Errorf("tunnel to %s: no tunnel source of its family", t.Outer)
	}
	be, protocol, behind := binary.BigEndian, byte(wire.ProtoIPv6), length
	if inner4 {
		protocol = wire.ProtoIPIP
	}
	var gue []byte
	if t.Encap == EncapGUE {
		behind += int(muxGueGUE_OVERHEAD)
		gue = be.AppendUint16(nil, uint16(muxGueSourceGUE_SOURCE_PORT)|uint16(t.Hash)&uint16(muxGueSourceGUE_SOURCE_MASK))
		gue = be.AppendUint16(gue, uint16(muxGueGUE_PORT))
		gue = be.AppendUint32(gue, uint32(behind)<<16)
		gue = append(gue, byte(muxGueGUE_VERSION_0), protocol, 0, 0, 0, 0)
		gue = be.AppendUint16(gue, uint16(muxGueGUE_NO_MEMBER))
		gue = be.AppendUint32(gue, 0)
		gue = be.AppendUint32(gue, uint32(t.Member)<<16)
		protocol = wire.ProtoUDP
	}
	var b []byte
	if t.Outer.Is4() {
		b = be.AppendUint16([]byte{0x45, 0}, uint16(20+behind))
		b = be.AppendUint32(b, uint32(muxEncapENCAP_DF))
		b = append(b, byte(muxEncapENCAP_TTL), protocol, 0, 0)
		b = append(append(b, source.AsSlice()...), t.Outer.AsSlice()...)
		be.PutUint16(b[10:], wire.Checksum(b))
	} else {
		b = be.AppendUint32(nil, 6<<28|uint32(t.Hash)&0xfffff)
		b = be.AppendUint16(b, uint16(behind))
		b = append(b, protocol, byte(muxEncapENCAP_TTL))
		b = append(append(b, source.AsSlice()...), t.Outer.AsSlice()...)
	}
	return append(b, gue...), nil
}

package packet

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/wire"
)

// TCP flags of sent segments (RFC 9293).
const (
	flagSYN = 0x02
	flagRST = 0x04
)

// tcpHeader is the length of a TCP header without options.
const tcpHeader = 20

// bareLength returns the length of an IP packet with a TCP header and no payload.
func bareLength(is4 bool) int {
	if is4 {
		return 20 + tcpHeader
	}
	return 40 + tcpHeader
}

// link holds the Ethernet addresses of frames, and the VLAN tag (TPID:16 | TCI:16, 0 none).
type link struct {
	to, from [6]byte
	tag      uint32
}

// linkOf returns the link of a way.
func linkOf(w netdev.NextHop) link { return link{w.MAC, w.Own, w.Tag} }

// plain writes the frame of template without outer headers into b, and returns its length.
func plain(b []byte, l link, local netip.Addr, peer netip.AddrPort) int {
	be := binary.BigEndian
	at := copy(b, l.to[:])
	at += copy(b[at:], l.from[:])
	if l.tag != 0 {
		be.PutUint32(b[at:], l.tag)
		at += 4
	}
	from, to := local.As16(), peer.Addr().As16()
	var sum uint32
	add := func(words []byte) {
		for i := 0; i < len(words); i += 2 {
			sum += uint32(be.Uint16(words[i:]))
		}
	}
	fold := func() uint16 {
		for sum > 0xffff {
			sum = sum&0xffff + sum>>16
		}
		return uint16(sum)
	}
	if local.Is4() {
		be.PutUint16(b[at:], wire.EtherTypeIPv4)
		at += 2
		copy(b[at:], []byte{0x45, 0, 0, 20 + tcpHeader, 0, 0, 0x40, 0, 64, wire.ProtoTCP, 0, 0})
		copy(b[at+12:], from[12:])
		copy(b[at+16:], to[12:])
		add(b[at : at+20])
		be.PutUint16(b[at+10:], ^fold())
		sum = 0
		add(b[at+12 : at+20])
		at += 20
	} else {
		be.PutUint16(b[at:], wire.EtherTypeIPv6)
		at += 2
		copy(b[at:], []byte{0x60, 0, 0, 0, 0, tcpHeader, wire.ProtoTCP, 64})
		copy(b[at+8:], from[:])
		copy(b[at+24:], to[:])
		add(b[at+8 : at+40])
		at += 40
	}
	tcp := b[at : at+tcpHeader]
	clear(tcp)
	be.PutUint16(tcp[2:], peer.Port())
	be.PutUint16(tcp[14:], dataplane.ProbeWindow)
	sum += wire.ProtoTCP + tcpHeader + uint32(peer.Port()) + uint32(dataplane.ProbeWindow)
	be.PutUint16(tcp[16:], fold())
	return at + tcpHeader
}

// template returns a frame from local to peer with a bare TCP segment, behind the outer headers,
// without the fields that patch writes. The checksum field has the sum of the other fields so far.
func template(l link, outer []byte, local netip.Addr, peer netip.AddrPort) []byte {
	be := binary.BigEndian
	size := 14 + len(outer) + bareLength(local.Is4())
	if l.tag != 0 {
		size += 4
	}
	b := make([]byte, 0, size)
	b = append(append(b, l.to[:]...), l.from[:]...)
	if l.tag != 0 {
		b = be.AppendUint32(b, l.tag)
	}
	is4 := local.Is4()
	if len(outer) > 0 {
		is4 = outer[0]>>4 == 4
	}
	if is4 {
		b = be.AppendUint16(b, wire.EtherTypeIPv4)
	} else {
		b = be.AppendUint16(b, wire.EtherTypeIPv6)
	}
	b = append(b, outer...)
	if local.Is4() {
		at := len(b)
		b = append(b, 0x45, 0, 0, 20+tcpHeader, 0, 0, 0x40, 0, 64, wire.ProtoTCP, 0, 0)
		b = append(append(b, local.AsSlice()...), peer.Addr().AsSlice()...)
		be.PutUint16(b[at+10:], wire.Checksum(b[at:]))
	} else {
		b = append(b, 0x60, 0, 0, 0, 0, tcpHeader, wire.ProtoTCP, 64)
		b = append(append(b, local.AsSlice()...), peer.Addr().AsSlice()...)
	}
	at := len(b)
	b = append(b, make([]byte, tcpHeader)...)
	be.PutUint16(b[at+2:], peer.Port())
	be.PutUint16(b[at+14:], dataplane.ProbeWindow)
	sum := wire.Sum(append(wire.PseudoHeader(local, peer.Addr(), wire.ProtoTCP, tcpHeader), b[at:]...))
	be.PutUint16(b[at+16:], sum)
	return b
}

// patch writes source port, sequence number, flags and checksum into a copy of a template.
func patch(b []byte, port uint16, seq uint32, flags uint8) {
	be := binary.BigEndian
	tcp := b[len(b)-tcpHeader:]
	word := uint16(tcpHeader/4)<<12 | uint16(flags)
	sum := uint32(be.Uint16(tcp[16:])) + uint32(port) + seq>>16 + seq&0xffff + uint32(word)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	be.PutUint16(tcp, port)
	be.PutUint32(tcp[4:], seq)
	be.PutUint16(tcp[12:], word)
	be.PutUint16(tcp[16:], ^uint16(sum))
}

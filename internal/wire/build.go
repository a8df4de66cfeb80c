package wire

import (
	"encoding/binary"
	"net/netip"
)

// Packet is an IP packet in an Ethernet frame. Lengths and checksums are filled in by Frame.
type Packet struct {
	DstMAC, SrcMAC [6]byte
	Src, Dst       netip.Addr // of one family
	TOS            uint8      // or traffic class
	TTL            uint8      // or hop limit; 0: 64
	ID             uint16     // IPv4
	Flags          uint16     // IPv4: flags and fragment offset
	FlowLabel      uint32     // IPv6
	Extensions     []Extension
	Payload        Payload
	Padding        int // zero bytes after the IP packet
}

// Extension is an IPv6 extension header without its first byte; the second byte is its length in
// the unit of the type.
type Extension struct {
	Type uint8
	Rest []byte // 8n-1 bytes
}

// Options returns a hop-by-hop or destination options header of 8*words bytes with only padding.
func Options(kind uint8, words int) Extension {
	rest := make([]byte, 8*words-1)
	rest[0] = uint8(words - 1)
	rest[1], rest[2] = 1, uint8(8*words-4) // PadN
	return Extension{kind, rest}
}

// Payload is a transport header with its data.
type Payload interface {
	// Protocol returns its IANA number for that family.
	Protocol(v6 bool) uint8
	// Bytes returns the segment with its checksum for these addresses.
	Bytes(src, dst netip.Addr) []byte
}

// TCP is a segment.
type TCP struct {
	SrcPort, DstPort uint16
	Seq, Ack         uint32
	Flags            uint8
	Window           uint16
	Options          []byte // padded to 4 bytes with end-of-options
	Data             []byte
}

// TCP flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// Protocol implements Payload.
func (TCP) Protocol(bool) uint8 { return ProtoTCP }

// Bytes implements Payload.
func (t TCP) Bytes(src, dst netip.Addr) []byte {
	be := binary.BigEndian
	options := append([]byte(nil), t.Options...)
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	b := be.AppendUint16(nil, t.SrcPort)
	b = be.AppendUint16(b, t.DstPort)
	b = be.AppendUint32(b, t.Seq)
	b = be.AppendUint32(b, t.Ack)
	b = append(b, uint8(5+len(options)/4)<<4, t.Flags)
	b = be.AppendUint16(b, t.Window)
	b = append(b, 0, 0, 0, 0)
	b = append(append(b, options...), t.Data...)
	be.PutUint16(b[16:], Checksum(PseudoHeader(src, dst, ProtoTCP, len(b)), b))
	return b
}

// UDP is a datagram.
type UDP struct {
	SrcPort, DstPort uint16
	Data             []byte
}

// Protocol implements Payload.
func (UDP) Protocol(bool) uint8 { return ProtoUDP }

// Bytes implements Payload.
func (u UDP) Bytes(src, dst netip.Addr) []byte {
	be := binary.BigEndian
	b := be.AppendUint16(nil, u.SrcPort)
	b = be.AppendUint16(b, u.DstPort)
	b = be.AppendUint16(b, uint16(8+len(u.Data)))
	b = append(append(b, 0, 0), u.Data...)
	sum := Checksum(PseudoHeader(src, dst, ProtoUDP, len(b)), b)
	if sum == 0 {
		sum = 0xffff
	}
	be.PutUint16(b[6:], sum)
	return b
}

// Echo is an ICMP echo request or reply of the addresses' family.
type Echo struct {
	Reply   bool
	ID, Seq uint16
	Data    []byte
}

// Protocol implements Payload.
func (Echo) Protocol(v6 bool) uint8 {
	if v6 {
		return ProtoICMPv6
	}
	return ProtoICMP
}

// Bytes implements Payload.
func (e Echo) Bytes(src, dst netip.Addr) []byte {
	kind, pseudo := uint8(8), []byte(nil)
	if e.Reply {
		kind = 0
	}
	if src.Is6() {
		kind = 128
		if e.Reply {
			kind = 129
		}
		pseudo = PseudoHeader(src, dst, ProtoICMPv6, 8+len(e.Data))
	}
	be := binary.BigEndian
	b := be.AppendUint16([]byte{kind, 0, 0, 0}, e.ID)
	b = append(be.AppendUint16(b, e.Seq), e.Data...)
	be.PutUint16(b[2:], Checksum(pseudo, b))
	return b
}

// Raw is an unmodified payload of any protocol.
type Raw struct {
	Number uint8
	Data   []byte
}

// Protocol implements Payload.
func (r Raw) Protocol(bool) uint8 { return r.Number }

// Bytes implements Payload.
func (r Raw) Bytes(netip.Addr, netip.Addr) []byte { return r.Data }

// Frame returns the Ethernet frame.
func (p Packet) Frame() []byte {
	kind := uint16(EtherTypeIPv4)
	if p.Dst.Is6() {
		kind = EtherTypeIPv6
	}
	b := append(p.DstMAC[:len(p.DstMAC):len(p.DstMAC)], p.SrcMAC[:]...)
	b = append(binary.BigEndian.AppendUint16(b, kind), p.IP()...)
	return append(b, make([]byte, p.Padding)...)
}

// IP returns the packet without its frame.
func (p Packet) IP() []byte {
	if p.TTL == 0 {
		p.TTL = 64
	}
	payload := p.Payload.Bytes(p.Src, p.Dst)
	if p.Dst.Is6() {
		return p.ip6(payload)
	}
	be := binary.BigEndian
	b := be.AppendUint16([]byte{0x45, p.TOS}, uint16(20+len(payload)))
	b = be.AppendUint16(b, p.ID)
	b = be.AppendUint16(b, p.Flags)
	b = append(b, p.TTL, p.Payload.Protocol(false), 0, 0)
	b = append(append(b, p.Src.AsSlice()...), p.Dst.AsSlice()...)
	be.PutUint16(b[10:], Checksum(b))
	return append(b, payload...)
}

func (p Packet) ip6(payload []byte) []byte {
	be := binary.BigEndian
	next := p.Payload.Protocol(true)
	for i := len(p.Extensions) - 1; i >= 0; i-- {
		e := p.Extensions[i]
		payload = append(append([]byte{next}, e.Rest...), payload...)
		next = e.Type
	}
	b := be.AppendUint32(nil, 6<<28|uint32(p.TOS)<<20|p.FlowLabel)
	b = be.AppendUint16(b, uint16(len(payload)))
	b = append(b, next, p.TTL)
	b = append(append(b, p.Src.AsSlice()...), p.Dst.AsSlice()...)
	return append(b, payload...)
}

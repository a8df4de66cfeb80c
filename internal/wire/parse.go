package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Header is the result of Parse. The slices are parts of the input.
type Header struct {
	V6             bool
	Src, Dst       netip.Addr
	TOS, TTL       uint8
	ID, Flags      uint16 // IPv4
	FlowLabel      uint32 // IPv6
	Extensions     []uint8
	Protocol       uint8  // of the payload, after extension headers
	Packet         []byte // the IP packet, without frame and padding
	Payload        []byte // from the transport header on
	SrcPort        uint16 // TCP and UDP
	DstPort        uint16
	ChecksumErrors []string // "ip", "tcp", "udp", "icmp"
}

// ErrTruncated is wrapped by errors of packets that end before an announced header.
var ErrTruncated = errors.New("truncated")

// ParseFrame parses an Ethernet frame with an IP packet.
func ParseFrame(frame []byte) (*Header, error) {
	if len(frame) < EthernetLength {
		return nil, fmt.Errorf("Ethernet header of %d bytes: %w", len(frame), ErrTruncated)
	}
	switch kind := binary.BigEndian.Uint16(frame[12:]); kind {
	case EtherTypeIPv4, EtherTypeIPv6:
		return Parse(frame[EthernetLength:])
	default:
		return nil, fmt.Errorf("Ethernet type %#04x: not IP", kind)
	}
}

// Parse parses an IP packet; bytes after it are padding.
func Parse(b []byte) (*Header, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("IP header: %w", ErrTruncated)
	}
	h := &Header{}
	var err error
	switch b[0] >> 4 {
	case 4:
		err = h.parse4(b)
	case 6:
		err = h.parse6(b)
	default:
		return nil, fmt.Errorf("IP version %d", b[0]>>4)
	}
	if err != nil {
		return nil, err
	}
	return h, h.parseTransport()
}

func (h *Header) parse4(b []byte) error {
	if len(b) < 20 {
		return fmt.Errorf("IPv4 header of %d bytes: %w", len(b), ErrTruncated)
	}
	header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < 20 || header > len(b) {
		return fmt.Errorf("IPv4 header length %d", header)
	}
	if total < header || total > len(b) {
		return fmt.Errorf("IPv4 total length %d of %d bytes", total, len(b))
	}
	h.Src, h.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	h.TOS, h.TTL, h.Protocol = b[1], b[8], b[9]
	h.ID, h.Flags = binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:])
	h.Packet, h.Payload = b[:total], b[header:total]
	if Sum(b[:header]) != 0xffff {
		h.ChecksumErrors = append(h.ChecksumErrors, "ip")
	}
	return nil
}

func (h *Header) parse6(b []byte) error {
	if len(b) < 40 {
		return fmt.Errorf("IPv6 header of %d bytes: %w", len(b), ErrTruncated)
	}
	end := 40 + int(binary.BigEndian.Uint16(b[4:]))
	if end > len(b) {
		return fmt.Errorf("IPv6 payload length %d of %d bytes", end-40, len(b)-40)
	}
	first := binary.BigEndian.Uint32(b)
	h.V6, h.TOS, h.TTL, h.FlowLabel = true, uint8(first>>20), b[7], first&0xfffff
	h.Src, h.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	h.Packet = b[:end]
	next, at := b[6], 40
	for next == ProtoHopByHop || next == ProtoRouting || next == ProtoDstOpts {
		if at+8 > end || at+8*(1+int(b[at+1])) > end {
			return fmt.Errorf("IPv6 extension header %d: %w", next, ErrTruncated)
		}
		h.Extensions = append(h.Extensions, next)
		next, at = b[at], at+8*(1+int(b[at+1]))
	}
	h.Protocol, h.Payload = next, b[at:end]
	return nil
}

// Fragment reports whether the packet is an IPv4 fragment or has an IPv6 fragment header.
func (h *Header) Fragment() bool {
	return h.Flags&0x3fff != 0 || h.V6 && h.Protocol == ProtoFragment
}

func (h *Header) parseTransport() error {
	b := h.Payload
	if h.Fragment() {
		return nil
	}
	name, least := "", 0
	switch h.Protocol {
	case ProtoTCP:
		name, least = "tcp", 20
	case ProtoUDP:
		name, least = "udp", 8
	case ProtoICMP, ProtoICMPv6:
		name, least = "icmp", 8
	default:
		return nil
	}
	if len(b) < least {
		return fmt.Errorf("%s header of %d bytes: %w", name, len(b), ErrTruncated)
	}
	if h.Protocol == ProtoTCP || h.Protocol == ProtoUDP {
		h.SrcPort, h.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	}
	if h.Protocol == ProtoUDP {
		n := int(binary.BigEndian.Uint16(b[4:]))
		if n < 8 || n > len(b) {
			return fmt.Errorf("UDP length %d of %d bytes", n, len(b))
		}
		b = b[:n]
		if binary.BigEndian.Uint16(b[6:]) == 0 && !h.V6 {
			return nil // no checksum (RFC 768)
		}
	}
	pseudo := PseudoHeader(h.Src, h.Dst, h.Protocol, len(b))
	if h.Protocol == ProtoICMP {
		pseudo = nil
	}
	if Checksum(pseudo, b) != 0 {
		h.ChecksumErrors = append(h.ChecksumErrors, name)
	}
	return nil
}

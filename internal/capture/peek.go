package capture

import (
	"encoding/binary"
	"net/netip"
)

// Addressed holds the addresses of a frame, as far as its headers can be parsed.
type Addressed struct {
	Src, Dst netip.Addr
	Protocol uint8
	// SrcPort and Port are those of TCP and UDP; 0 for other protocols and fragments without ports.
	SrcPort, Port uint16
	// Member is the member id of a GUE header (bpf/lib/gue_header.h), -1 without one.
	Member int
}

// Numbers of IANA and of bpf/lib/gue_header.h.
const (
	typeIPv4, typeIPv6, typeVLAN, typeVLANService = 0x0800, 0x86dd, 0x8100, 0x88a8
	protocolTCP, protocolUDP                      = 6, 17
	portGUE                                       = 6080
	// UDP header, then offset of the id in struct gue_header
	memberInGUE = 8 + 12
	noMember    = 0xffff
)

// Peek parses an Ethernet frame, or its first bytes. Dst is invalid if it is not an IP packet.
func Peek(frame []byte) Addressed {
	out := Addressed{Member: -1}
	at := 12
	for len(frame) >= at+4 {
		kind := binary.BigEndian.Uint16(frame[at:])
		if kind != typeVLAN && kind != typeVLANService {
			break
		}
		at += 4
	}
	if len(frame) < at+2 {
		return out
	}
	ip := frame[at+2:]
	var l4 []byte
	switch binary.BigEndian.Uint16(frame[at:]) {
	case typeIPv4:
		l4 = out.peek4(ip)
	case typeIPv6:
		l4 = out.peek6(ip)
	}
	if len(l4) >= 4 && (out.Protocol == protocolTCP || out.Protocol == protocolUDP) {
		out.SrcPort = binary.BigEndian.Uint16(l4)
		out.Port = binary.BigEndian.Uint16(l4[2:])
	}
	if out.Protocol == protocolUDP && out.Port == portGUE && len(l4) >= memberInGUE+2 {
		if m := binary.BigEndian.Uint16(l4[memberInGUE:]); m != noMember {
			out.Member = int(m)
		}
	}
	return out
}

// peek4 parses an IPv4 header and returns the payload; nil for a fragment that is not the first.
func (a *Addressed) peek4(ip []byte) []byte {
	if len(ip) < 20 {
		return nil
	}
	a.Src, a.Dst, a.Protocol = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20])), ip[9]
	header := int(ip[0]&15) * 4
	if header < 20 || len(ip) < header || binary.BigEndian.Uint16(ip[6:])&0x1fff != 0 {
		return nil
	}
	return ip[header:]
}

// peek6 parses an IPv6 header and its extensions (RFC 8200 section 4).
func (a *Addressed) peek6(ip []byte) []byte {
	if len(ip) < 40 {
		return nil
	}
	a.Src, a.Dst, a.Protocol = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40])), ip[6]
	rest := ip[40:]
	for len(rest) >= 8 {
		length := 8
		switch a.Protocol {
		case 0, 43, 60: // hop-by-hop, routing, destination options
			length += int(rest[1]) * 8
		case 44: // fragment
			if binary.BigEndian.Uint16(rest[2:])&^7 != 0 {
				a.Protocol = rest[0]
				return nil
			}
		default:
			return rest
		}
		a.Protocol = rest[0]
		if len(rest) < length {
			return nil
		}
		rest = rest[length:]
	}
	return rest
}

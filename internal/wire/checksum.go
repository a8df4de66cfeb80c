// Package wire builds and parses headers for tests and tools: Ethernet, IPv4, IPv6 with extension
// headers, TCP, UDP, ICMP echo. It is pure, and simple rather than fast.
package wire

import (
	"encoding/binary"
	"net/netip"
)

// Protocol numbers (IANA).
const (
	ProtoHopByHop  = 0
	ProtoICMP      = 1
	ProtoIPIP      = 4
	ProtoTCP       = 6
	ProtoUDP       = 17
	ProtoIPv6      = 41
	ProtoRouting   = 43
	ProtoFragment  = 44
	ProtoICMPv6    = 58
	ProtoNoNext    = 59
	ProtoDstOpts   = 60
	EtherTypeIPv4  = 0x0800
	EtherTypeIPv6  = 0x86dd
	EtherTypeVLAN  = 0x8100
	EthernetLength = 14
)

// Sum returns the one's complement sum of b as big-endian 16-bit values, an odd last byte padded
// with zero (RFC 1071).
func Sum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		if i%2 == 0 {
			sum += uint32(v) << 8
		} else {
			sum += uint32(v)
		}
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// Checksum returns the Internet checksum of the concatenated parts; all except the last must have
// even lengths.
func Checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, p := range parts {
		sum += uint32(Sum(p))
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// PseudoHeader returns the part of the IP header that transport checksums cover (RFC 9293 section
// 3.1, RFC 8200 section 8.1).
func PseudoHeader(src, dst netip.Addr, protocol uint8, length int) []byte {
	b := append(src.AsSlice(), dst.AsSlice()...)
	if src.Is4() {
		return binary.BigEndian.AppendUint16(append(b, 0, protocol), uint16(length))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return append(b, 0, 0, 0, protocol)
}

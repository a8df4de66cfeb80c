package benchrun

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Lengths and offsets of the frames, Ethernet header first.
const (
	ethLen    = 14
	ip4Len    = 20
	ip6Len    = 40
	tcpLen    = 20
	tcpFlags  = 13 // offset in the TCP header
	frame4Len = 64
	frame6Len = 80
	// timestampsLen is the length of two NOPs and the timestamps option (RFC 7323 appendix A).
	timestampsLen = 12

	protoTCP  = 6
	protoIPIP = 4
	protoIPv6 = 41
	ttl       = 64
	tcpACK    = 0x10
	tcpSYN    = 0x02
)

// template returns the frame whose addresses and ports the front program fills in.
func template(f Family) []byte {
	if f == IPv4 {
		return template4()
	}
	return template6()
}

// withTimestamps makes room for the timestamps option behind two NOPs, and nothing behind it; the front program fills in the echo.
func withTimestamps(frame []byte, f Family) []byte {
	l4 := f.flagsAt() - tcpFlags
	out := make([]byte, l4+tcpLen+timestampsLen)
	copy(out, frame[:l4+tcpLen])
	out[l4+12] = (tcpLen + timestampsLen) / 4 << 4
	copy(out[l4+tcpLen:], []byte{1, 1, 8, 10})
	f.setLength(out)
	return out
}

// withData is a frame with eight octets more.
func withData(frame []byte, f Family) []byte {
	out := append(slices.Clip(frame), make([]byte, 8)...)
	f.setLength(out)
	return out
}

// setLength writes into a frame how long its IP packet is.
func (f Family) setLength(frame []byte) {
	if f == IPv4 {
		binary.BigEndian.PutUint16(frame[ethLen+2:], uint16(len(frame)-ethLen))
	} else {
		binary.BigEndian.PutUint16(frame[ethLen+4:], uint16(len(frame)-ethLen-ip6Len))
	}
}

// frameTo is where frames are sent to.
var frameTo = [6]byte{2, 0, 0, 0, 0, 2}

// ethernet writes the Ethernet header; the addresses are locally administered.
func ethernet(frame []byte, etherType uint16) {
	copy(frame, frameTo[:])
	copy(frame[len(frameTo):], []byte{2, 0, 0, 0, 0, 3})
	binary.BigEndian.PutUint16(frame[12:], etherType)
}

func template4() []byte {
	frame := make([]byte, frame4Len)
	ethernet(frame, 0x0800)
	ip := frame[ethLen:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], frame4Len-ethLen)
	ip[8], ip[9] = ttl, protoTCP
	tcp(ip[ip4Len:])
	return frame
}

func template6() []byte {
	frame := make([]byte, frame6Len)
	ethernet(frame, 0x86dd)
	ip := frame[ethLen:]
	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:], frame6Len-ethLen-ip6Len)
	ip[6], ip[7] = protoTCP, ttl
	source, vip := client6.As16(), vip6.As16()
	copy(ip[8:16], source[:8])
	copy(ip[24:32], vip[:8])
	tcp(ip[ip6Len:])
	return frame
}

// tcp writes the constant part of a TCP header without flags and options. The checksum stays zero: muxes do not look.
func tcp(h []byte) {
	binary.BigEndian.PutUint16(h[2:], Port)
	h[12] = tcpLen / 4 << 4
	binary.BigEndian.PutUint16(h[14:], 0xffff)
}

// flagsAt is where a frame has its TCP flags.
func (f Family) flagsAt() int {
	if f == IPv4 {
		return ethLen + ip4Len + tcpFlags
	}
	return ethLen + ip6Len + tcpFlags
}

// storedSum is the folded ones' complement sum of b as 16-bit words in the machine's (little-endian) order.
func storedSum(b []byte) uint32 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.LittleEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return sum
}

// Outer is the outer header of a frame that a program under test sent.
type Outer struct {
	Source, Destination netip.Addr
}

// parseOuter reads the outer header and checks that it announces an inner packet of the given family and its length.
func parseOuter(frame []byte, inner Family) (Outer, error) {
	if len(frame) < ethLen+ip4Len {
		return Outer{}, fmt.Errorf("frame of %d bytes has no outer header", len(frame))
	}
	ip, next := frame[ethLen:], byte(protoIPIP)
	if inner == IPv6 {
		next = protoIPv6
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		if got := binary.BigEndian.Uint16(ip[2:]); ip[0] != 0x45 || int(got) != len(ip) || ip[9] != next {
			return Outer{}, fmt.Errorf("outer IPv4 header % x: want version 4, length %d, protocol %d", ip[:ip4Len], len(ip), next)
		}
		if sum := storedSum(ip[:ip4Len]); sum != 0xffff {
			return Outer{}, fmt.Errorf("outer IPv4 header % x: bad checksum", ip[:ip4Len])
		}
		return Outer{netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))}, nil
	case 0x86dd:
		if len(ip) < ip6Len || ip[0]>>4 != 6 || int(binary.BigEndian.Uint16(ip[4:])) != len(ip)-ip6Len || ip[6] != next {
			return Outer{}, fmt.Errorf("outer IPv6 header % x: want version 6, length %d, next header %d", ip[:min(len(ip), ip6Len)], len(ip)-ip6Len, next)
		}
		return Outer{netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))}, nil
	}
	return Outer{}, fmt.Errorf("frame of type %#04x", binary.BigEndian.Uint16(frame[12:]))
}

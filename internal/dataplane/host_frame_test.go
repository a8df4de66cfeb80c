package dataplane

import (
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/lb"
)

// packet describes an inner packet; its bytes are made by gopacket, independently of the programs.
type packet struct {
	protocol lb.Protocol
	src, dst string
	sport    uint16
	dport    uint16
	syn, ack bool
	fin      bool
	acked    uint32 // acknowledgement number
	rst      bool
	seq      uint32 // 0: 0x11223344 unless it is a RST
	options  []layers.TCPOption
	payload  string
	noSum    bool // UDP over IPv4 without checksum
}

var (
	macA = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	macB = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

func is4(addr string) bool { return netip.MustParseAddr(addr).Is4() }

// ip makes an IP header.
func ipLayer(src, dst string, protocol layers.IPProtocol) gopacket.SerializableLayer {
	if is4(src) {
		return &layers.IPv4{Version: 4, TTL: 61, Id: 0x1234, Flags: layers.IPv4DontFragment, Protocol: protocol,
			SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)}
	}
	return &layers.IPv6{Version: 6, HopLimit: 61, FlowLabel: 0x12345, NextHeader: protocol, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)}
}

func serialize(t *testing.T, sums bool, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: sums}, l...))
	return buf.Bytes()
}

// bytes is the IP packet.
func (p packet) bytes(t *testing.T) []byte {
	t.Helper()
	ip := ipLayer(p.src, p.dst, layers.IPProtocol(p.protocol))
	network := ip.(gopacket.NetworkLayer)
	if p.protocol == lb.TCP {
		tcp := &layers.TCP{SrcPort: layers.TCPPort(p.sport), DstPort: layers.TCPPort(p.dport), Seq: 0x11223344,
			SYN: p.syn, ACK: p.ack, FIN: p.fin, Ack: p.acked, Window: 0x7fff, Options: p.options}
		if p.rst || p.seq != 0 {
			tcp.RST, tcp.Seq = p.rst, p.seq
		}
		must(t, tcp.SetNetworkLayerForChecksum(network))
		return serialize(t, true, ip, tcp, gopacket.Payload(p.payload))
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(p.sport), DstPort: layers.UDPPort(p.dport)}
	must(t, udp.SetNetworkLayerForChecksum(network))
	out := serialize(t, true, ip, udp, gopacket.Payload(p.payload))
	if p.noSum {
		out[26], out[27] = 0, 0
	}
	return out
}

// frame puts an Ethernet header in front of an IP packet.
func frame(ip []byte) []byte {
	ethertype := []byte{0x08, 0x00}
	if ip[0]>>4 == 6 {
		ethertype = []byte{0x86, 0xdd}
	}
	out := append(append([]byte{}, macB...), macA...)
	return append(append(out, ethertype...), ip...)
}

// tunnel wraps an IP packet, in a frame.
func tunnel(t *testing.T, src, dst string, inner []byte) []byte {
	t.Helper()
	protocol := layers.IPProtocolIPv4
	if inner[0]>>4 == 6 {
		protocol = layers.IPProtocolIPv6
	}
	return frame(serialize(t, true, ipLayer(src, dst, protocol), gopacket.Payload(inner)))
}

// gueHeader is what muxes write between the outer UDP header and the packet (protocol section 6.1).
func gueHeader(inner []byte, member uint16) []byte {
	protocol := byte(layers.IPProtocolIPv4)
	if inner[0]>>4 == 6 {
		protocol = byte(layers.IPProtocolIPv6)
	}
	// hop 1, generation 7, previous member 0x0102, vni 0.
	return []byte{3, protocol, 0, 0, 0x10, 7, 1, 2, 0, 0, 0, 0, byte(member >> 8), byte(member), 0, 0}
}

// gueTunnel wraps an IP packet in GUE, without a UDP checksum.
func gueTunnel(t *testing.T, src, dst string, member uint16, inner []byte) []byte {
	t.Helper()
	p := packet{protocol: lb.UDP, src: src, dst: dst, sport: 0xc123, dport: 6080, payload: string(append(gueHeader(inner, member), inner...))}
	out := p.bytes(t)
	at := 26
	if !is4(src) {
		at = 46
	}
	out[at], out[at+1] = 0, 0
	return frame(out)
}

// mssOption is the MSS option after `nops` NOPs.
func mssOption(nops int, mss uint16) []layers.TCPOption {
	var o []layers.TCPOption
	for range nops {
		o = append(o, layers.TCPOption{OptionType: layers.TCPOptionKindNop})
	}
	return append(o, layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{byte(mss >> 8), byte(mss)}},
		layers.TCPOption{OptionType: layers.TCPOptionKindSACKPermitted, OptionLength: 2})
}

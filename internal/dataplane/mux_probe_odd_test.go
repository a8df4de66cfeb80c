package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/wire"
)

// TestProbeLeavesTheRestToTheKernel: whatever is not of the round goes on untouched, tags included, and changes nothing.
func TestProbeLeavesTheRestToTheKernel(t *testing.T) {
	f := basicFixture(t)
	for name, rule := range map[string]ProbeRule{
		"IPv4": {Peer: netip.AddrPortFrom(probeServer4, 8080), Local: probeLocal4, Request: probeText},
		"IPv6": {Peer: netip.AddrPortFrom(probeServer6, 8080), Local: probeLocal6, Request: probeText},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			r := newProbeRig(t, f, rule)
			good := wire.TCP{Seq: 7, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK}
			with := func(change func(*wire.Packet, *wire.TCP)) []byte {
				seg := good
				p := r.packet(seg)
				seg = p.Payload.(wire.TCP)
				change(&p, &seg)
				if _, tcp := p.Payload.(wire.TCP); tcp {
					p.Payload = seg
				}
				return p.Frame()
			}
			for name, frame := range map[string][]byte{
				"wrong ISN, random part": with(func(_ *wire.Packet, s *wire.TCP) { s.Ack++ }),
				"below the ISN":          with(func(_ *wire.Packet, s *wire.TCP) { s.Ack-- }),
				"wrong ISN, number":      with(func(_ *wire.Packet, s *wire.TCP) { s.Ack += 1 << 12 }),
				"beyond the rules":       with(func(_ *wire.Packet, s *wire.TCP) { s.Ack ^= 1 << 31 }),
				"within the request":     with(func(_ *wire.Packet, s *wire.TCP) { s.Ack += uint32(len(probeText)) - 1 }),
				"beyond the request":     with(func(_ *wire.Packet, s *wire.TCP) { s.Ack += uint32(len(probeText)) + 1 }),
				"stale round":            with(func(_ *wire.Packet, s *wire.TCP) { s.Ack ^= 1 << 5 }),
				"wrong source":           with(func(p *wire.Packet, _ *wire.TCP) { p.Src = p.Src.Next() }),
				"wrong destination":      with(func(p *wire.Packet, _ *wire.TCP) { p.Dst = p.Dst.Next() }),
				"wrong source port":      with(func(_ *wire.Packet, s *wire.TCP) { s.SrcPort++ }),
				"port below the round's": with(func(_ *wire.Packet, s *wire.TCP) { s.DstPort-- }),
				"port above the round's": with(func(_ *wire.Packet, s *wire.TCP) { s.DstPort += 4 }),
				"port of no probe":       with(func(_ *wire.Packet, s *wire.TCP) { s.DstPort = 60000 }),
				"no ACK":                 with(func(_ *wire.Packet, s *wire.TCP) { s.Flags = wire.SYN }),
				"RST without ACK":        with(func(_ *wire.Packet, s *wire.TCP) { s.Flags = wire.RST }),
				"UDP": with(func(p *wire.Packet, s *wire.TCP) {
					p.Payload = wire.UDP{SrcPort: s.SrcPort, DstPort: s.DstPort, Data: make([]byte, 20)}
				}),
				"ping": with(func(p *wire.Packet, s *wire.TCP) { p.Payload = wire.Echo{ID: 1} }),
				"truncated": with(func(p *wire.Packet, s *wire.TCP) {
					p.Payload = wire.Raw{Number: wire.ProtoTCP, Data: s.Bytes(p.Src, p.Dst)[:19]}
				}),
				"data offset 4": with(func(p *wire.Packet, s *wire.TCP) {
					b := s.Bytes(p.Src, p.Dst)
					b[12] = 0x40
					p.Payload = wire.Raw{Number: wire.ProtoTCP, Data: b}
				}),
				"header beyond the segment": with(func(p *wire.Packet, s *wire.TCP) {
					b := s.Bytes(p.Src, p.Dst)
					b[12] = 0x60
					p.Payload = wire.Raw{Number: wire.ProtoTCP, Data: b}
				}),
			} {
				r.expect(name, frame, xdpPass, frame, "pass_not_ours", ProbeResult{})
				tags := tagged(frame, 0x88a82001, 0x81000002)
				r.expect(name+", tagged", tags, xdpPass, tags, "pass_not_ours", ProbeResult{})
			}
			if rule.Local.Is4() {
				options := with(func(*wire.Packet, *wire.TCP) {})
				options = slices.Concat(options[:34], []byte{1, 1, 1, 0}, options[34:])
				options[14], options[17] = 0x46, options[17]+4
				options[24], options[25] = 0, 0
				binary.BigEndian.PutUint16(options[24:], wire.Checksum(options[14:38]))
				r.expect("IPv4 options", options, xdpPass, options, "pass_not_ours", ProbeResult{})
				sum := with(func(*wire.Packet, *wire.TCP) {})
				sum[24]++
				r.expect("header checksum", sum, xdpPass, sum, "pass_not_ours", ProbeResult{})
			}
			long := with(func(*wire.Packet, *wire.TCP) {})
			at := 17
			if rule.Local.Is6() {
				at = 19
			}
			long[at]++
			r.expect("length beyond the frame", long, xdpPass, long, "pass_not_ours", ProbeResult{})
			r.probes.End(r.number)
			ended := with(func(*wire.Packet, *wire.TCP) {})
			r.expect("after the round", ended, xdpPass, ended, "pass_not_ours", ProbeResult{})
		})
	}
}

// TestProbeAnswersInOddForms: tags, padding, extension headers and bytes in several pieces change nothing.
func TestProbeAnswersInOddForms(t *testing.T) {
	f := basicFixture(t)
	for name, rule := range map[string]ProbeRule{
		"IPv4": {Peer: netip.AddrPortFrom(probeServer4, 8080), Local: probeLocal4, Request: probeText},
		"IPv6": {Peer: netip.AddrPortFrom(probeServer6, 8080), Local: probeLocal6, Request: probeText},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			r := newProbeRig(t, f, rule)
			request := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 8, Flags: wire.ACK | wire.PSH, Data: probeText})
			synAck := r.packet(wire.TCP{Seq: 7, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK})
			connected := ProbeResult{State: ProbeConnected}
			for _, tags := range [][]uint32{nil, {0x81000064}, {0x88a82001, 0x81000002}} {
				p := synAck
				p.Padding = 6
				r.expect("tagged and padded", tagged(p.Frame(), tags...), xdpTX, request, "probe_asked", connected)
			}
			if rule.Local.Is6() {
				p := synAck
				p.Extensions = []wire.Extension{wire.Options(wire.ProtoHopByHop, 1), wire.Options(wire.ProtoDstOpts, 3)}
				r.expect("extension headers", p.Frame(), xdpTX, request, "probe_asked", connected)
			}
			behind := r.isn + 1 + uint32(len(probeText))
			huge := r.packet(wire.TCP{Ack: behind, Flags: wire.ACK, Data: append([]byte("HTTP/1.1 204 \r\n"), make([]byte, 8000)...)}).Frame()
			r.expect("jumbo frame", huge, xdpTX, r.sent(wire.TCP{Seq: behind, Flags: wire.RST}), "probe_ended", ProbeResult{State: ProbeStatus, Status: 204})
			r.again()
			long := ProbeRule{Peer: rule.Peer, Local: rule.Local, Hop: r.rule.Hop, Request: bytes.Repeat([]byte("x"), ProbeRequestMax)}
			r = newProbeRig(t, f, long)
			r.expect("longest request", synAck.Frame(), xdpTX, r.sent(wire.TCP{Seq: r.isn + 1, Ack: 8, Flags: wire.ACK | wire.PSH, Data: long.Request}), "probe_asked", connected)
		})
	}
}

// TestProbeUnreachable: an ICMP error counts that quotes the round's SYN, and nothing else.
func TestProbeUnreachable(t *testing.T) {
	f := basicFixture(t)
	for name, rule := range map[string]ProbeRule{
		"IPv4": {Peer: netip.AddrPortFrom(probeServer4, 8080), Local: probeLocal4, Request: probeText},
		"IPv6": {Peer: netip.AddrPortFrom(probeServer6, 8080), Local: probeLocal6, Request: probeText},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			r := newProbeRig(t, f, rule)
			kind, code, tooBig, protocol, router := byte(3), byte(1), [2]byte{3, 4}, uint8(wire.ProtoICMP), muxClient4
			if rule.Local.Is6() {
				kind, code, tooBig, protocol, router = 1, 3, [2]byte{2, 0}, wire.ProtoICMPv6, muxClient6
			}
			quote := func(seq uint32, change func(*wire.Packet, *wire.TCP)) []byte {
				s := wire.TCP{SrcPort: probePort + 1, DstPort: rule.Peer.Port(), Seq: seq, Flags: wire.SYN}
				p := wire.Packet{Src: rule.Local, Dst: rule.Peer.Addr(), Payload: s}
				change(&p, &s)
				p.Payload = s
				return p.IP()
			}
			message := func(kind, code byte, quoted []byte) []byte {
				data := append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, quoted...)
				return wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Src: router, Dst: rule.Local, Payload: wire.Raw{Number: protocol, Data: data}}.Frame()
			}
			none := func(*wire.Packet, *wire.TCP) {}
			pass := func(name string, frame []byte) {
				t.Helper()
				r.expect(name, frame, xdpPass, frame, "pass_not_ours", ProbeResult{})
			}
			pass("packet too big", message(tooBig[0], tooBig[1], quote(r.isn, none)))
			pass("time exceeded", message(map[bool]byte{true: 11, false: 3}[rule.Local.Is4()], 0, quote(r.isn, none)))
			pass("another sequence number", message(kind, code, quote(r.isn+1, none)))
			pass("another server", message(kind, code, quote(r.isn, func(p *wire.Packet, _ *wire.TCP) { p.Dst = p.Dst.Next() })))
			pass("another sender", message(kind, code, quote(r.isn, func(p *wire.Packet, _ *wire.TCP) { p.Src = p.Src.Next() })))
			pass("another port", message(kind, code, quote(r.isn, func(_ *wire.Packet, s *wire.TCP) { s.SrcPort += 3 })))
			pass("too short a quote", message(kind, code, quote(r.isn, none)[:27]))
			pass("nothing quoted", message(kind, code, nil))
			frame := message(kind, code, quote(r.isn, none))
			r.expect("unreachable", frame, xdpDrop, frame, "probe_unreachable", ProbeResult{State: ProbeUnreachable, Attempt: 1})
			synAck := r.packet(wire.TCP{Seq: 7, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK}).Frame()
			request := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 8, Flags: wire.ACK | wire.PSH, Data: probeText})
			r.expect("SYN-ACK after all", synAck, xdpTX, request, "probe_asked", ProbeResult{State: ProbeConnected})
			r.expect("unreachable again", frame, xdpDrop, frame, "probe_unreachable", ProbeResult{State: ProbeConnected})
		})
	}
}

// TestProbeWithoutAWay: what cannot be sent is counted.
func TestProbeWithoutAWay(t *testing.T) {
	f := basicFixture(t)
	r := newProbeRig(t, f, ProbeRule{Peer: netip.AddrPortFrom(probeServer4, 8080), Local: probeLocal4})
	synAck := r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.SYN | wire.ACK}).Frame()
	store(&r.probes.rules[r.number].Nexthop, 0)
	r.expect("unresolved", synAck, xdpDrop, synAck, "no_nexthop", ProbeResult{State: ProbeAnswered})
	// The test runner has room for every request; one that nobody may have stands for a driver with less.
	asking := newProbeRig(t, f, ProbeRule{Peer: netip.AddrPortFrom(probeServer4, 8080), Local: probeLocal4, Request: probeText})
	asking.probes.rules[asking.number].RequestLen = 5000
	rst := asking.sent(wire.TCP{Seq: asking.isn + 1, Flags: wire.RST})
	asking.expect("no room", synAckOf(asking), xdpTX, rst, "probe_no_room", ProbeResult{State: ProbeStuck})
}

// synAckOf is a SYN-ACK of a rig's server.
func synAckOf(r *probeRig) []byte {
	return r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.SYN | wire.ACK}).Frame()
}

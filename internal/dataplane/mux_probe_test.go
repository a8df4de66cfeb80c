package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/wire"
)

const (
	probePort = 61500
	probeISN  = 0x5a5 // the random part
	probeTime = 123456789
)

var (
	probeLocal4  = netip.MustParseAddr("10.10.0.11")
	probeLocal6  = netip.MustParseAddr("2001:db8:10::11")
	probeServer4 = netip.MustParseAddr("10.20.1.11")
	probeServer6 = netip.MustParseAddr("2001:db8:20:1::11")
	probeText    = []byte("GET /healthz HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n")
)

// probeRig is a mux with one probe, number 77, in a round.
type probeRig struct {
	*muxFixture
	probes *Probes
	rule   ProbeRule
	isn    uint32
	tag    uint32
	number uint32
}

// newProbeRig begins a round of a rule. Its device is the one that prog-run says packets come in by.
func newProbeRig(t *testing.T, f *muxFixture, r ProbeRule) *probeRig {
	t.Helper()
	p, err := f.mux.Probes()
	must(t, err)
	if r.Hop == (NextHop{}) {
		r.Hop = NextHop{MAC: muxRouter, Ifindex: ingress}
	}
	rig := &probeRig{muxFixture: f, probes: p, rule: r, number: 77, tag: r.Hop.Tag}
	must(t, p.Put(rig.number, r))
	rig.begin(probeISN)
	f.setJiffies(probeTime)
	return rig
}

// begin begins a round.
func (r *probeRig) begin(random uint32) {
	r.isn = (r.number^r.probes.Key())<<12 | random
	r.probes.Begin(r.number, r.isn, probePort)
}

// packet is one of the server.
func (r *probeRig) packet(seg wire.TCP) wire.Packet {
	seg.SrcPort = r.rule.Peer.Port()
	if seg.DstPort == 0 {
		seg.DstPort = probePort
	}
	return wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Src: r.rule.Peer.Addr(), Dst: r.rule.Local, Payload: seg}
}

// sent is the frame of a segment to the server, tunnel and tag included.
func (r *probeRig) sent(seg wire.TCP) []byte {
	seg.DstPort, seg.Window = r.rule.Peer.Port(), ProbeWindow
	if seg.SrcPort == 0 {
		seg.SrcPort = probePort
	}
	p := wire.Packet{DstMAC: muxRouter, SrcMAC: testMAC(r.rule.Hop.Ifindex), Src: r.rule.Local, Dst: r.rule.Peer.Addr(), Flags: 0x4000, Payload: seg}
	if p.Src.Is6() {
		p.Flags = 0
	}
	frame := p.Frame()
	outer := r.rule.Outer
	if len(seg.Data) > 0 {
		outer = r.rule.OuterRequest
	}
	if len(outer) > 0 {
		frame = slices.Concat(frame[:12], []byte{8, 0}, outer, frame[14:])
		if outer[0]>>4 == 6 {
			frame[12], frame[13] = 0x86, 0xdd
		}
	}
	return withTag(frame, r.tag)
}

// expect runs a frame: its verdict, what leaves, the one reason that is counted, and the result.
func (r *probeRig) expect(name string, frame []byte, verdict uint32, out []byte, reason string, want ProbeResult) {
	r.t.Helper()
	before := r.reasonsNow()
	gotVerdict, gotOut := r.run(frame)
	if gotVerdict != verdict || !bytes.Equal(gotOut, out) {
		r.t.Fatalf("%s: got verdict %d, frame\n%x\nwant verdict %d, frame\n%x", name, gotVerdict, gotOut, verdict, out)
	}
	after := r.reasonsNow()
	for n := range after {
		counted, wanted := after[n]-before[n], uint64(0)
		if n == reason {
			wanted = 1
		}
		if counted != wanted {
			r.t.Fatalf("%s: reason %s counted %d times, want %s alone", name, n, counted, reason)
		}
	}
	if want.State != ProbeSilent {
		want.Time = probeTime
	}
	if got := r.probes.Result(r.number, r.isn); got != want {
		r.t.Fatalf("%s: result %+v, want %+v", name, got, want)
	}
}

// again begins a fresh round, after which nothing is known.
func (r *probeRig) again() {
	r.begin(probeISN ^ 1)
	r.begin(probeISN)
}

// probeWays are rules over every way to a server.
func probeWays(t *testing.T, request []byte) map[string]ProbeRule {
	t.Helper()
	rule4 := ProbeRule{Peer: netip.AddrPortFrom(probeServer4, 8080), Local: probeLocal4, Request: request}
	rule6 := ProbeRule{Peer: netip.AddrPortFrom(probeServer6, 8080), Local: probeLocal6, Request: request}
	tagged := rule4
	tagged.Hop = NextHop{MAC: muxRouter, Ifindex: ingress, Tag: 0x81000064}
	elsewhere := rule6
	elsewhere.Hop = NextHop{MAC: muxRouter, Ifindex: ingress + 1}
	out := map[string]ProbeRule{"IPv4": rule4, "IPv6": rule6, "IPv4 in a VLAN": tagged, "IPv6 by another device": elsewhere}
	for _, encap := range []Encap{EncapIPIP, EncapGUE} {
		for _, r := range []ProbeRule{rule4, rule6} {
			for _, outer := range []netip.Addr{probeServer4, probeServer6} {
				vip, bare := muxVIP4, 40
				if r.Local.Is6() {
					vip, bare = muxVIP6, 60
				}
				tunnel := Tunnel{Outer: outer, Encap: encap, Member: 513, Sources: sources, Hash: 0x123456789abcdef}
				r.Peer = netip.AddrPortFrom(vip, 80)
				var err error
				r.Outer, err = tunnel.Header(r.Local.Is4(), bare)
				must(t, err)
				r.OuterRequest, err = tunnel.Header(r.Local.Is4(), bare+len(request))
				must(t, err)
				out[fmt.Sprintf("tunnel %d of %s to %s", encap, r.Local, outer)] = r
			}
		}
	}
	return out
}

// sentVerdict is how a frame leaves.
func (r *probeRig) sentVerdict() uint32 {
	if r.rule.Hop.Ifindex == ingress {
		return xdpTX
	}
	return xdpRedirect
}

func TestProbeTCP(t *testing.T) {
	f := basicFixture(t)
	for name, rule := range probeWays(t, nil) {
		t.Run(name, func(t *testing.T) {
			f.t = t
			if rule.Hop == (NextHop{}) {
				rule.Hop = NextHop{MAC: muxRouter, Ifindex: ingress}
			}
			r := newProbeRig(t, f, rule)
			tx := r.sentVerdict()
			synAck := r.packet(wire.TCP{Seq: 1e9, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK, Options: []byte{2, 4, 5, 180, 1, 1, 4, 2}})
			rst := r.sent(wire.TCP{Seq: r.isn + 1, Flags: wire.RST})
			answered := ProbeResult{State: ProbeAnswered}
			r.expect("SYN-ACK", synAck.Frame(), tx, rst, "probe_ended", answered)
			r.expect("SYN-ACK again", synAck.Frame(), tx, rst, "probe_ended", answered)

			r.again()
			refusal := r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.RST | wire.ACK, DstPort: probePort + 3}).Frame()
			refused := ProbeResult{State: ProbeRefused, Attempt: 3}
			r.expect("RST", refusal, xdpDrop, refusal, "probe_reset", refused)
			r.expect("SYN-ACK after all", synAck.Frame(), tx, rst, "probe_ended", refused)
		})
	}
}

func TestProbeHTTP(t *testing.T) {
	f := basicFixture(t)
	for name, rule := range probeWays(t, probeText) {
		t.Run(name, func(t *testing.T) {
			f.t = t
			if rule.Hop == (NextHop{}) {
				rule.Hop = NextHop{MAC: muxRouter, Ifindex: ingress}
			}
			r := newProbeRig(t, f, rule)
			tx := r.sentVerdict()
			behind := r.isn + 1 + uint32(len(probeText))
			synAck := r.packet(wire.TCP{Seq: 0xffffffff, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK, Options: []byte{2, 4, 5, 180}}).Frame()
			request := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 0, Flags: wire.ACK | wire.PSH, Data: probeText})
			rst := r.sent(wire.TCP{Seq: behind, Flags: wire.RST})
			answer := func(data string, flags uint8) []byte {
				return r.packet(wire.TCP{Seq: 0, Ack: behind, Flags: wire.ACK | flags, Data: []byte(data)}).Frame()
			}
			connected := ProbeResult{State: ProbeConnected}
			r.expect("SYN-ACK", synAck, tx, request, "probe_asked", connected)
			r.expect("SYN-ACK again", synAck, tx, request, "probe_asked", connected)
			pure := answer("", 0)
			r.expect("pure ACK", pure, xdpDrop, pure, "probe_ignored", connected)
			ok := ProbeResult{State: ProbeStatus, Status: 200}
			r.expect("200", answer("HTTP/1.1 200 OK\r\n", wire.PSH), tx, rst, "probe_ended", ok)
			r.expect("200 again, with FIN", answer("HTTP/1.1 503 No\r\n", wire.FIN), tx, rst, "probe_ended", ok)
			r.expect("SYN-ACK too late", synAck, tx, r.sent(wire.TCP{Seq: r.isn + 1, Flags: wire.RST}), "probe_ended", ok)

			for data, want := range map[string]ProbeResult{
				"HTTP/1.0 503\r\n": {State: ProbeStatus, Status: 503},
				"HTTP/1.1 404\n":   {State: ProbeStatus, Status: 404},
				"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Filler: 0123456789\r\n", 60): {State: ProbeStatus, Status: 200},
				"HTTP/1.1 200":              {State: ProbeOdd},
				"HTTP/1.1 2000":             {State: ProbeOdd},
				"HTTP/1.1 100 Continue\r\n": {State: ProbeOdd},
				"HTTP/2.0 200 OK\r\n":       {State: ProbeOdd},
				"HTTP/1.2 200 OK\r\n":       {State: ProbeOdd},
				"HTTP/1.1  200 OK\r\n":      {State: ProbeOdd},
				"HTTP/1.1 20x OK\r\n":       {State: ProbeOdd},
				"http/1.1 200 OK\r\n":       {State: ProbeOdd},
				"H":                         {State: ProbeOdd},
				"SSH-2.0-OpenSSH_9\r\n":     {State: ProbeOdd},
			} {
				r.again()
				r.expect(data, answer(data, wire.PSH), tx, rst, "probe_ended", want)
			}
			r.again()
			greeting := r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.ACK, Data: []byte("220 smtp\r\n")}).Frame()
			r.expect("data before the request", greeting, tx, r.sent(wire.TCP{Seq: r.isn + 1, Flags: wire.RST}), "probe_ended", ProbeResult{State: ProbeOdd})
			r.again()
			r.expect("FIN", answer("", wire.FIN), tx, rst, "probe_ended", ProbeResult{State: ProbeClosed})
			r.again()
			reset := r.packet(wire.TCP{Ack: behind, Flags: wire.RST | wire.ACK}).Frame()
			r.expect("RST later", reset, xdpDrop, reset, "probe_reset", ProbeResult{State: ProbeBroken})
			r.again()
			r.expect("SYN-ACK", synAck, tx, request, "probe_asked", connected)
			reset = r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.RST | wire.ACK}).Frame()
			r.expect("RST of a connection that there was", reset, xdpDrop, reset, "probe_reset", ProbeResult{State: ProbeBroken})
		})
	}
}

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

// TestProbesAreOffUntilAskedFor: without rules the walk is as before, tagged or not.
func TestProbesAreOffUntilAskedFor(t *testing.T) {
	f := basicFixture(t)
	frame := wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Src: probeServer4, Dst: probeLocal4,
		Payload: wire.TCP{SrcPort: 80, DstPort: 61500, Ack: 1, Flags: wire.SYN | wire.ACK}}.Frame()
	for _, b := range [][]byte{frame, tagged(frame, 0x81000064)} {
		if got := f.check(b); got.reason != "pass_not_ours" {
			t.Errorf("the model says %s", got.reason)
		}
	}
}

// TestTunnelHeaderIsTheMuxs compares with the model of the walk, which is compared with the program.
func TestTunnelHeaderIsTheMuxs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inner4, gue := rapid.Bool().Draw(t, "inner4"), rapid.Bool().Draw(t, "gue")
		outer := rapid.SampledFrom([]netip.Addr{probeServer4, probeServer6}).Draw(t, "outer")
		hash, member := rapid.Uint64().Draw(t, "hash"), rapid.Uint16Max(4095).Draw(t, "member")
		length := rapid.IntRange(40, 1200).Draw(t, "length")
		m := &muxModel{state: MuxState{TunnelSources: sources}}
		p := modelPacket{dst: muxVIP6, packet: make([]byte, length)}
		if inner4 {
			p.dst = muxVIP4
		}
		tunnel := Tunnel{Outer: outer, Member: member, Sources: sources, Hash: hash}
		e := MuxEndpoint{}
		if gue {
			e.Encap, tunnel.Encap = EncapGUE, EncapGUE
		}
		got, err := tunnel.Header(inner4, length)
		if err != nil {
			t.Fatal(err)
		}
		if want := m.outer(p, e, MuxMember{ID: member, Outer: outer}, hash); !bytes.Equal(got, want) {
			t.Fatalf("got %x, want %x", got, want)
		}
	})
	if _, err := (Tunnel{Outer: probeServer6, Sources: sources[:1]}).Header(true, 40); err == nil {
		t.Error("a tunnel without a source of its family")
	}
}

// TestProbeRulesAreChecked: a rule that cannot be made leaves none behind, and no text held.
func TestProbeRulesAreChecked(t *testing.T) {
	f := NewFakeProbes(4)
	good := ProbeRule{Peer: netip.AddrPortFrom(probeServer4, 80), Local: probeLocal4, Request: probeText}
	for want, change := range map[string]func(*ProbeRule) uint32{
		"address: must have a port":         func(r *ProbeRule) uint32 { r.Peer = netip.AddrPortFrom(probeServer4, 0); return 0 },
		"must be an address of the same":    func(r *ProbeRule) uint32 { r.Local = probeLocal6; return 0 },
		"request: 1025 bytes: must be at":   func(r *ProbeRule) uint32 { r.Request = make([]byte, 1025); return 0 },
		"outer headers: 20 and 0 bytes":     func(r *ProbeRule) uint32 { r.Outer = make([]byte, 20); return 0 },
		"number 4: at most 4 probes":        func(*ProbeRule) uint32 { return 4 },
		"no room for 600 bytes: 8 lines of": func(r *ProbeRule) uint32 { r.Request = make([]byte, 600); return 0 },
	} {
		r := good
		if err := f.Put(change(&r), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if f.texts.room.used != 0 {
		t.Errorf("%d lines are held", f.texts.room.used)
	}
}

// TestTextStoreHoldsEachTextOnce compares with a map of texts.
func TestTextStoreHoldsEachTextOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newTextStore(make([]muxProbeText, 64))
		type held struct {
			t     *text
			bytes string
		}
		var all []held
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(all) > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
				s.release(all[i].t)
				all = slices.Delete(all, i, i+1)
			} else {
				b := bytes.Repeat([]byte{byte(rapid.IntRange(1, 5).Draw(t, "letter"))}, rapid.IntRange(0, 300).Draw(t, "length"))
				if x, err := s.hold(b); err == nil {
					all = append(all, held{x, string(b)})
				}
			}
			distinct := map[string]uint32{}
			for _, h := range all {
				var got []byte
				for i := range uint32((len(h.bytes) + 63) / 64) {
					got = append(got, s.lines[h.t.first()+i].Bytes[:]...)
				}
				if want := append([]byte(h.bytes), make([]byte, len(got)-len(h.bytes))...); !bytes.Equal(got, want) {
					t.Fatalf("text %q reads %x", h.bytes, got)
				}
				if h.t != nil {
					distinct[h.bytes] = h.t.words
				}
			}
			var words uint32
			for _, n := range distinct {
				words += n
			}
			if s.room.used != words {
				t.Fatalf("%d lines in use, %d held", s.room.used, words)
			}
		}
	})
}

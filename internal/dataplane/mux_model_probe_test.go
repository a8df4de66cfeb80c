package dataplane

import (
	"encoding/binary"
	"slices"

	"github.com/shuntlb/shunt/internal/wire"
)

// modelProbes are the probes that the model knows; nil: the program takes no answers.
type modelProbes struct {
	key   ProbeKey
	rules map[uint32]*modelProbe // by number
	// touched is the rule whose round the last packet was of; nil: none.
	touched *modelProbe
}

// modelProbe is a rule with its round.
type modelProbe struct {
	number uint32
	rule   ProbeRule
	on     bool // there is a round
	isn    uint32
	port   uint16
	result ProbeResult // of the round
}

// probePossible says whether a tagged packet of this protocol is looked into.
func (m *muxModel) probePossible(protocol byte) bool { return m.probes != nil && protocol != 17 }

// of is the rule whose probe was sent with a sequence number, or some behind it.
func (q *modelProbes) of(seq uint32) *modelProbe { return q.rules[q.key.Number(seq)] }

// fits says whether a packet from the server belongs to the round.
func (r *modelProbe) fits(p modelPacket) bool {
	return r.on && p.src == r.rule.Peer.Addr() && p.sport == r.rule.Peer.Port() && p.dst == r.rule.Local && p.dport >= r.port &&
		int(p.dport) < int(r.port)+ProbeAttempts
}

// note notes what a round came to: the first final state stays, and no state goes back.
func (m *muxModel) note(r *modelProbe, p modelPacket, state ProbeState, status int) (before ProbeState) {
	before = r.result.State
	if !before.Final() && state > before {
		r.result = ProbeResult{State: state, Status: uint16(status), Attempt: uint8(p.dport - r.port), Time: m.policy.now}
	}
	m.probes.touched = r
	return before
}

// walkUnclaimed ends a packet for no VIP.
func (m *muxModel) walkUnclaimed(frame []byte, p modelPacket) modelResult {
	icmp := byte(1)
	if p.dst.Is6() {
		icmp = 58
	}
	result, ours := modelResult{}, false
	switch {
	case m.probes == nil || p.bad != "" || p.fragment != nil:
	case p.protocol == icmp:
		result, ours = m.walkProbeError(frame, p)
	case p.protocol == 6:
		result, ours = m.walkProbe(frame, p)
	}
	if !ours {
		return modelResult{verdict: xdpPass, frame: frame, reason: "pass_not_ours"}
	}
	return result
}

// walkProbe takes a segment of a probe's server.
func (m *muxModel) walkProbe(frame []byte, p modelPacket) (out modelResult, ours bool) {
	be, flags := binary.BigEndian, p.l4[13]
	acked := be.Uint32(p.l4[8:])
	r := m.probes.of(acked - 1)
	if flags&wire.ACK == 0 || p.dport < ProbePortFirst || r == nil || !r.fits(p) {
		return out, false
	}
	request := uint32(len(r.rule.Request))
	if acked != r.isn+1 && acked != r.isn+1+request {
		return out, false
	}
	drop := func(reason string) (modelResult, bool) {
		return modelResult{verdict: xdpDrop, frame: frame, reason: reason}, true
	}
	reset := wire.TCP{Seq: acked, Flags: wire.RST}
	data := p.l4[int(p.l4[12]>>4)*4:]
	switch {
	case flags&wire.RST != 0:
		state := ProbeRefused
		if acked != r.isn+1 || r.result.State >= ProbeConnected {
			state = ProbeBroken
		}
		m.note(r, p, state, 0)
		return drop("probe_reset")
	case flags&wire.SYN != 0 && acked != r.isn+1:
		return drop("probe_ignored")
	case flags&wire.SYN != 0 && request == 0:
		m.note(r, p, ProbeAnswered, 0)
		return m.sendProbe(frame, p, r, reset), true
	case flags&wire.SYN != 0:
		if m.note(r, p, ProbeConnected, 0).Final() {
			return m.sendProbe(frame, p, r, reset), true
		}
		ask := wire.TCP{Seq: acked, Ack: be.Uint32(p.l4[4:]) + 1, Flags: wire.PSH | wire.ACK, Data: r.rule.Request}
		return m.sendProbe(frame, p, r, ask), true
	case len(data) > 0:
		if status := statusOf(data); status > 0 {
			m.note(r, p, ProbeStatus, status)
		} else {
			m.note(r, p, ProbeOdd, 0)
		}
		return m.sendProbe(frame, p, r, reset), true
	case flags&wire.FIN != 0:
		m.note(r, p, ProbeClosed, 0)
		return m.sendProbe(frame, p, r, reset), true
	}
	return drop("probe_ignored")
}

// statusOf is the final status that an HTTP/1 answer begins with (RFC 9112 section 4); 0: none.
func statusOf(b []byte) (status int) {
	if len(b) < 13 || string(b[:7]) != "HTTP/1." || b[7] != '0' && b[7] != '1' || b[8] != ' ' || !slices.Contains([]byte(" \r\n"), b[12]) {
		return 0
	}
	for _, digit := range b[9:12] {
		if digit < '0' || digit > '9' {
			return 0
		}
		status = status*10 + int(digit-'0')
	}
	if status < 200 {
		return 0
	}
	return status
}

// sendProbe sends a segment to a probe's server, the way of its rule.
func (m *muxModel) sendProbe(frame []byte, p modelPacket, r *modelProbe, seg wire.TCP) modelResult {
	hop, reason := r.rule.Hop, "probe_ended"
	if hop == (NextHop{}) {
		return modelResult{verdict: xdpDrop, frame: frame, reason: "no_nexthop"}
	}
	outer := r.rule.Outer
	if len(seg.Data) > 0 {
		outer, reason = stretched(outer, len(seg.Data)), "probe_asked"
	}
	seg.SrcPort, seg.DstPort, seg.Window = p.dport, p.sport, ProbeWindow
	plain := wire.Packet{Src: p.dst, Dst: p.src, Flags: 0x4000, Payload: seg}.Frame()
	mac := m.mac(hop.Ifindex)
	out := slices.Concat(hop.MAC[:], mac[:], plain[12:14], outer, plain[14:])
	if len(outer) > 0 {
		out[12], out[13] = 0x08, 0x00
		if outer[0]>>4 == 6 {
			out[12], out[13] = 0x86, 0xdd
		}
	}
	verdict := uint32(xdpRedirect)
	if hop.Ifindex == m.ingress {
		verdict = xdpTX
	}
	return modelResult{verdict: verdict, frame: withTag(out, hop.Tag), reason: reason}
}

// walkProbeError takes an ICMP error that says that a probe's server cannot be reached.
func (m *muxModel) walkProbeError(frame []byte, p modelPacket) (out modelResult, ours bool) {
	if len(p.l4) < 8 || (p.dst.Is4() && (p.l4[0] != 3 || p.l4[1] == 4)) || (p.dst.Is6() && p.l4[0] != 1) {
		return out, false
	}
	room := max(p.room, 0)
	src, dst, protocol, l4, ok := quoted(p.l4[min(8, room):min(len(p.l4), room)], p.dst.Is6())
	if !ok || src != p.dst || protocol != 6 || p.dst.Is6() && p.l4[8+6] == 44 {
		return out, false
	}
	be := binary.BigEndian
	flow := modelPacket{src: dst, dst: src, sport: be.Uint16(l4[2:]), dport: be.Uint16(l4)}
	seq := be.Uint32(l4[4:])
	r := m.probes.of(seq)
	if r == nil || !r.fits(flow) || seq != r.isn {
		return out, false
	}
	m.note(r, flow, ProbeUnreachable, 0)
	return modelResult{verdict: xdpDrop, frame: frame, reason: "probe_unreachable"}, true
}

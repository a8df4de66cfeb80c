package dataplane

import (
	"encoding/binary"
	"net/netip"
)

// modelEdge is what the model remembers of fragments and answers.
type modelEdge struct {
	fragments map[modelFragmentKey]modelFirst
	pings     map[netip.Addr]*bucketModel
	ptb       map[netip.Addr]*bucketModel
	firsts    map[netip.Addr]*bucketModel // of fragments that are remembered
}

// modelFragment is what a fragment says of itself, and where its first one went.
type modelFragment struct {
	id          uint32
	later, more bool
	followed    *modelFirst
}

// modelFragmentKey is what all fragments of a packet share (RFC 791, RFC 8200).
type modelFragmentKey struct {
	src, dst netip.Addr
	id       uint32
	protocol byte
}

type modelFirst struct {
	endpoint MuxEndpoint
	member   uint16
	hash     uint64
	time     uint64
	known    bool // to the fuzzer
	gone     bool // the endpoint's member words moved since
}

func (p modelPacket) fragmentKey() modelFragmentKey {
	k := modelFragmentKey{p.src, p.dst, p.fragment.id, p.protocol}
	if p.dst.Is6() {
		k.protocol = 0
	}
	return k
}

// readFragment6 reads the fragment header at p.l4, and in a first fragment what follows.
func (p *modelPacket) readFragment6() {
	if p.bad != "" {
		return
	}
	h := p.l4
	if min(len(h), p.room) < 8 {
		p.bad = "ip6_extensions"
		return
	}
	word := binary.BigEndian.Uint16(h[2:])
	p.protocol, p.l4, p.plain = h[0], h[8:], false
	p.room -= 8
	own := modelFragment{id: binary.BigEndian.Uint32(h[4:]), later: word&0xfff8 != 0, more: word&1 != 0}
	p.fragment = &own
	if own.later {
		return
	}
	p.readExtensions(false)
	if p.fragment != &own { // another fragment header
		p.bad = "ip6_extensions"
	}
}

// walkFragment: the first fragment goes by its ports, later ones follow it.
func (m *muxModel) walkFragment(frame []byte, p modelPacket) modelResult {
	drop := func(reason string) modelResult { return modelResult{verdict: xdpDrop, frame: frame, reason: reason} }
	icmp := p.protocol == 1
	if p.protocol == 58 || icmp && p.dst.Is6() {
		return drop("fragment")
	}
	ports := p.protocol == 6 || p.protocol == 17
	if icmp && !p.fragment.later {
		if r, ok := m.outboundEcho(frame, p); ok {
			return r
		}
		return drop("fragment")
	}
	if !p.fragment.later {
		e, ok := m.endpointOf(p.dst, p.protocol, p.dport)
		switch {
		case ok:
			return m.forward(frame, p, e)
		case ports:
			if r, ok := m.outbound(frame, p, p.dport); ok {
				return r
			}
			return drop("no_endpoint")
		}
		return drop("fragment")
	}
	if first, ok := m.edge.fragments[p.fragmentKey()]; ok && m.policy.now-first.time < 5*m.policy.hz {
		if r, ok := m.followOutbound(frame, p, first); ok {
			return r
		}
		for _, e := range m.state.Endpoints {
			if e.Key == first.endpoint.Key && !first.gone && m.keeps(e, first.member) {
				p.fragment.followed = &first
				return m.forward(frame, p, e)
			}
		}
	}
	if icmp {
		return drop("fragment")
	}
	if !ports {
		if e, ok := m.endpointOf(p.dst, p.protocol, 0); ok {
			return m.forward(frame, p, e)
		}
		return drop("fragment")
	}
	for _, e := range m.state.Endpoints {
		if e.Key.VIP == p.dst && byte(e.Key.Protocol) == p.protocol && e.Fragments3Tuple {
			return m.forward(frame, p, e)
		}
	}
	return drop("fragment")
}

// rememberFragment notes where a first fragment that has others behind it went.
func (m *muxModel) rememberFragment(p modelPacket, e MuxEndpoint, member uint16, hash uint64) {
	if p.fragment == nil || p.fragment.later || !p.fragment.more {
		return
	}
	if m.edge.fragments == nil {
		m.edge.fragments = map[modelFragmentKey]modelFirst{}
	}
	if m.edge.firsts == nil {
		m.edge.firsts = map[netip.Addr]*bucketModel{}
	}
	if m.edge.firsts[p.dst] == nil {
		m.edge.firsts[p.dst] = m.bucketFull(1 << 13)
	}
	if !m.edge.firsts[p.dst].take(m.policy.now) {
		m.noted = append(m.noted, "fragment_limited")
		return
	}
	m.edge.fragments[p.fragmentKey()] = modelFirst{
		endpoint: e, member: member, hash: hash & 0xffffffff, time: m.policy.now, known: m.edge.fragments[p.fragmentKey()].known,
	}
	m.trail.first = p.fragmentKey()
	m.trail.remembered = true
}

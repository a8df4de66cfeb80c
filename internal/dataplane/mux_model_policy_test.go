package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// modelPolicy is what the model remembers of limits and datagrams.
type modelPolicy struct {
	now       uint64 // jiffies
	hz        uint64
	packets   map[netip.Addr]*bucketModel
	flows     map[netip.Addr]*bucketModel
	datagrams uint64 // to endpoints with one packet
}

// endpointOf finds the endpoint that takes a packet: one for the very port, else a range, else all ports, else any
// protocol.
func (m *muxModel) endpointOf(vip netip.Addr, protocol byte, port uint16) (found MuxEndpoint, ok bool) {
	best, at := 0, 0
	of := m.index().vips[vip]
	if of == nil {
		return found, false
	}
	for _, i := range of.endpoints {
		k, rank := &m.state.Endpoints[i].Key, 0
		all := k.Port == 0 && k.PortEnd == 65535
		switch {
		case k.Protocol == lb.AnyProtocol:
			rank = 1
		case byte(k.Protocol) != protocol:
		case all:
			rank = 2
		case k.PortEnd != 0 && k.Port <= port && port <= k.PortEnd:
			rank = 3
		case k.PortEnd == 0 && k.Port == port:
			rank = 4
		}
		if rank > best {
			best, at = rank, i
		}
	}
	if best == 0 {
		return found, false
	}
	return m.state.Endpoints[at], true
}

// deniedPing says whether the VIP does not answer the source's pings.
func (m *muxModel) deniedPing(p modelPacket) bool {
	for _, v := range m.state.VIPs {
		if v.VIP == p.dst && v.Sources != nil && naiveDenied(v.Sources, p.src.Unmap()) {
			return true
		}
	}
	return false
}

// admit says why a packet is refused by what applies to its VIP; "" when it is not.
func (m *muxModel) admit(p modelPacket) string {
	if v := m.policyOf(p.dst); v != nil {
		if v.Sources != nil && naiveDenied(v.Sources, p.src.Unmap()) {
			return "source_denied"
		}
		if !m.policy.take(m.policy.packets, v.VIP, v.Limits.Packets) {
			return "rate_limited"
		}
		if p.protocol == 6 && p.l4[13]&2 != 0 && !m.policy.take(m.policy.flows, v.VIP, v.Limits.Connections) {
			return "new_flow_limited"
		}
	}
	return ""
}

// take takes a token of a VIP's limit: so many a second, a tenth of a second's worth at once, but 16 at least.
func (m *modelPolicy) take(buckets map[netip.Addr]*bucketModel, vip netip.Addr, rate uint64) bool {
	if rate == 0 {
		return true
	}
	interval := max(1, m.hz<<bucketShift/rate)
	window := max(m.hz<<bucketShift/10, 16*interval)
	b := buckets[vip]
	if b == nil {
		b = &bucketModel{tokens: window, last: m.now}
		buckets[vip] = b
	}
	b.interval, b.window = interval, window
	return b.take(m.now)
}

// modelIdentity is what a flow is known by.
type modelIdentity struct {
	vni          uint32
	src, dst     netip.Addr
	protocol     byte
	sport, dport uint16
}

// identity says what makes the flow of a packet.
func (m *muxModel) identity(p modelPacket, e MuxEndpoint) modelIdentity {
	id := modelIdentity{0, p.src, p.dst, p.protocol, p.sport, p.dport}
	bits := int(e.SourcePrefix4)
	if p.dst.Is6() {
		bits = int(e.SourcePrefix6)
	}
	switch {
	case e.OnePacket: // counted, so that no two are the same
		n := m.policy.datagrams
		m.policy.datagrams++
		id.vni, id.sport = uint32(n>>16&0xffffff), uint16(n)
	case bits != 0:
		prefix, _ := p.src.Prefix(bits)
		id.src, id.protocol, id.sport, id.dport = prefix.Addr(), byte(e.Key.Protocol), 0, e.Key.Port
	case e.Fragments3Tuple:
		id.sport, id.dport = 0, 0
	}
	return id
}

func (id modelIdentity) hash(key ring.Key) uint64 {
	return ring.FlowHash(key, id.vni, id.src, id.dst, id.protocol, id.sport, id.dport)
}

// entry is the hash of the flow table.
func (id modelIdentity) entry(key ring.Key) uint64 {
	return ring.TableHash(key, id.vni, id.src, id.dst, id.protocol, id.sport, id.dport)
}

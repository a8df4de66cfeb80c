package dataplane

import (
	"maps"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// modelFlows is the flow table written down naively.
type modelFlows struct {
	key     ring.Key
	spread  ring.Key // of outer sources
	buckets [][8]modelFlow
	shift   uint32 // of jiffies to ticks
	tick    time.Duration
	over    map[lb.EndpointKey]bool // endpoints of VIPs over their share
}

// modelFlowsOf returns an empty table with the keys and the clock of a mux.
func modelFlowsOf(m *Mux) *modelFlows {
	c := m.memory.config
	return &modelFlows{
		key: ring.Key{K0: c.FlowKey.K0, K1: c.FlowKey.K1}, spread: ring.Key{K0: c.SpreadKey.K0, K1: c.SpreadKey.K1},
		buckets: make([][8]modelFlow, len(m.memory.flows)), shift: m.tickShift, tick: m.tables.tick,
	}
}

// modelFlow is an entry; class 0 is none. Its member is named, not numbered: gone when its endpoint was removed since.
type modelFlow struct {
	fingerprint uint64
	class       FlowClass
	stamp       uint64
	member      MemberKey
	gone        bool
	moved       bool // its endpoint's member words moved since: the next packet writes it anew
}

// ticks is an idle time in ticks.
func (t *modelFlows) ticks(d time.Duration) uint64 {
	n := uint64(d / t.tick)
	if d%t.tick != 0 {
		n++
	}
	return min(max(n, 1), 1<<16-1<<13)
}

// idle is how long a flow or client of an endpoint may be without packets, in ticks.
func (t *modelFlows) idle(e MuxEndpoint, f modelFlow) uint64 {
	switch {
	case e.sourceBits() != 0 && f.fingerprint&1 == 1:
		return t.ticks(e.SourceFor)
	case f.class == FlowTrusted:
		return t.ticks(e.Idle.Trusted)
	}
	return t.ticks(e.Idle.Untrusted)
}

// longestOf is the longest idle time of any endpoint.
func (m *muxModel) longestOf(class FlowClass) (most uint64) {
	for _, e := range m.state.Endpoints {
		d := e.Idle.Untrusted
		if class == FlowTrusted {
			d = e.Idle.Trusted
		}
		most = max(most, m.flows.ticks(d), m.flows.ticks(e.SourceFor))
	}
	return most
}

func (m *muxModel) now() uint64 { return m.policy.now >> m.flows.shift }

func (m *muxModel) age(f modelFlow) uint64 {
	age := (m.now() - f.stamp) & 0xffff
	if age == 0xffff {
		age = 0
	}
	return age
}

// stamp is what an entry of a flow is written with: so that an untrusted one of a scheduled endpoint with cookies has ten seconds left at most.
func (m *muxModel) stamp(e MuxEndpoint, class FlowClass) uint64 {
	now := m.now()
	if class == FlowUntrusted && e.Cookie != nil && e.Scheduler != ScheduleRing {
		if limit, most := m.flows.ticks(e.Idle.Untrusted), m.flows.ticks(10*time.Second); limit > most {
			now -= limit - most
		}
	}
	return now & 0xffff
}

// segmentOf is the flags that the flow table looks at: a packet without TCP is like a segment with ACK.
func segmentOf(p modelPacket) (syn, end, ack bool) {
	if p.protocol != 6 {
		return false, false, true
	}
	flags := p.l4[13]
	return flags&2 != 0, flags&5 != 0, flags&16 != 0
}

// find looks for the entry of a hash: its bucket, its place or -1, and whether it counts.
func (m *muxModel) find(e MuxEndpoint, hash uint64) (bucket *[8]modelFlow, at int, live bool) {
	number := hash % uint64(len(m.flows.buckets))
	m.trail.buckets = append(m.trail.buckets, int(number))
	bucket = &m.flows.buckets[number]
	if at = modelHome(hash); bucket[at].fingerprint != hash>>39 {
		at = slices.IndexFunc(bucket[:], func(f modelFlow) bool { return f.fingerprint == hash>>39 })
	}
	if at < 0 || bucket[at].class == 0 {
		return bucket, -1, false
	}
	// The words of an endpoint end with its highest member id: beyond it nothing is remembered.
	f := bucket[at]
	within := slices.ContainsFunc(e.Members, func(mm MuxMember) bool { return mm.ID >= f.member.Member })
	return bucket, at, within && !f.gone && f.member.Endpoint == e.Key && m.age(f) <= m.flows.idle(e, f)
}

// modelHome is the entry of its bucket that a flow takes if it can.
func modelHome(hash uint64) int { return int(hash >> 36 & 7) }

// remember finds the member of a flow in the table, or chooses one and enters it.
func (m *muxModel) remember(p modelPacket, e MuxEndpoint, id modelIdentity, ringHash uint64) (uint16, uint64, string) {
	if !m.allowed(p.src) {
		return 0, 0, "bad_source"
	}
	syn, end, ack := segmentOf(p)
	first := syn || p.protocol != 6
	if syn && e.Cookie != nil && e.Scheduler != ScheduleRing {
		value, echo, _ := timestamps(p.l4)
		first = value|echo != 0
	}
	hash, choose := id.entry(m.flows.key), func(room bool) (uint16, bool) { return m.pick(e, ringHash, first && room) }
	if e.sourceBits() != 0 {
		hash, choose = m.rememberClient(p, e, id, ringHash)
	}
	bucket, at, live := m.find(e, hash)
	class := FlowUntrusted
	if end {
		class = FlowClosing
	}
	if live {
		f := &bucket[at]
		member, present := memberWith(e, f.member.Member)
		alive, first := present && (m.alive[f.member] || (!syn || f.class == FlowTrusted) && e.KeepDead), class
		if syn && f.class == FlowClosing && e.Cookie != nil {
			alive = false
		}
		if !syn {
			class = f.class
			switch {
			case end:
				class = FlowClosing
			case ack && class == FlowUntrusted:
				class = FlowTrusted
			}
		} else if class = FlowUntrusted; f.class == FlowTrusted {
			class = FlowTrusted
		}
		if alive && (!syn || f.class != FlowClosing || member.Choosable) {
			m.passed(e, f.member, f.class, class, syn)
			if f.class != class || m.age(*f) >= 2 || f.moved {
				f.class, f.stamp, f.moved = class, m.stamp(e, class), false
			}
			return f.member.Member, hash, ""
		}
		if !syn {
			m.noted = append(m.noted, "flow_moved")
		} else {
			class = first // another flow begins
		}
	} else if !syn && !m.takeFlow(p) {
		return 0, 0, "new_flow_limited"
	}
	if passing := syn && e.Cookie != nil && e.Scheduler == ScheduleRing && !e.FlowsFirst; passing && !live {
		if chosen, ok := choose(false); ok {
			return chosen, hash, ""
		}
		return 0, 0, "no_backend"
	}
	if at < 0 && len(e.Members) > 0 {
		at = m.room(bucket, modelHome(hash), e.Key)
	}
	chosen, ok := choose(at >= 0)
	if !ok {
		return 0, 0, "no_backend"
	}
	if at < 0 {
		m.noted = append(m.noted, "flow_table_full")
		return chosen, hash, ""
	}
	bucket[at] = modelFlow{hash >> 39, class, m.stamp(e, class), MemberKey{e.Key, chosen}, false, false}
	return chosen, hash, ""
}

// takeFlow asks the limit of new flows of the packet's VIP.
func (m *muxModel) takeFlow(p modelPacket) bool {
	if v := m.policyOf(p.dst); v != nil {
		return m.policy.take(m.policy.flows, v.VIP, v.Limits.Connections)
	}
	return true
}

// room is the entry that a newcomer to an endpoint takes, or -1.
func (m *muxModel) room(bucket *[8]modelFlow, home int, to lb.EndpointKey) int {
	free, oldest, untrusted := -1, -1, 0
	longest := m.index().longest
	for i, f := range bucket {
		switch {
		case f.class == 0 || m.age(f) > longest[f.class]:
			if free < 0 || i == home {
				free = i
			}
		case f.class != FlowTrusted:
			untrusted++
			if oldest < 0 || m.age(f) > m.age(bucket[oldest]) {
				oldest = i
			}
		}
	}
	if untrusted < 4 && free >= 0 {
		return free
	}
	return m.sharedRoom(bucket, oldest, to)
}

// setOver takes over which VIPs hold more than their share of the flow table.
func (m *muxModel) setOver(shares []Share) {
	m.flows.over = map[lb.EndpointKey]bool{}
	for _, s := range shares {
		for _, e := range m.state.Endpoints {
			if s.Table == "flows" && e.Key.VIP == s.VIP.VIP {
				m.flows.over[e.Key] = true
			}
		}
	}
}

// sharedRoom is the entry that a newcomer to an endpoint takes in a bucket without free entries, or -1; own is the one without shares.
func (m *muxModel) sharedRoom(bucket *[8]modelFlow, own int, to lb.EndpointKey) int {
	given := -1
	for i, f := range bucket {
		if f.class == 0 || f.gone || !m.flows.over[f.member.Endpoint] || m.flows.over[to] && f.class == FlowTrusted {
			continue
		}
		if given < 0 || m.age(f) > m.age(bucket[given]) {
			given = i
		}
	}
	switch {
	case m.flows.over[to]:
		return given
	case given < 0:
		return own
	}
	m.noted = append(m.noted, "flow_displaced")
	return given
}

// leave marks the flows of endpoints that are not there any more.
func (m *muxModel) leave(stays map[lb.EndpointKey]bool) {
	maps.DeleteFunc(m.flows.over, func(k lb.EndpointKey, _ bool) bool { return !stays[k] })
	m.eachFlow(func(f *modelFlow) {
		if !stays[f.member.Endpoint] {
			f.gone = true
		}
	})
}

// forget is a sweep without a clock.
func (m *muxModel) forget() {
	m.eachFlow(func(f *modelFlow) {
		if f.moved = false; f.gone {
			*f = modelFlow{}
		}
	})
}

// sweep forgets what is idle for too long, and flows of endpoints that are gone.
func (m *muxModel) sweep() (expired uint64) {
	endpoints := map[lb.EndpointKey]MuxEndpoint{}
	for _, e := range m.state.Endpoints {
		endpoints[e.Key] = e
	}
	m.eachFlow(func(f *modelFlow) {
		if f.moved = false; f.gone {
			*f = modelFlow{}
		} else if m.age(*f) > m.flows.idle(endpoints[f.member.Endpoint], *f) {
			*f = modelFlow{}
			expired++
		}
	})
	return expired
}

func (m *muxModel) eachFlow(do func(*modelFlow)) {
	for i := range m.flows.buckets {
		for j := range m.flows.buckets[i] {
			if m.flows.buckets[i][j].class != 0 {
				do(&m.flows.buckets[i][j])
			}
		}
	}
}

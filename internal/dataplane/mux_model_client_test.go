package dataplane

// clientBit is the lowest bit of the fingerprint: it tells clients from flows.
const clientBit = 1 << 39

// flowHashBeside is the hash of a flow's own entry at an endpoint that remembers clients.
func flowHashBeside(m *muxModel, p modelPacket, e MuxEndpoint) uint64 {
	id := modelIdentity{0, p.src, p.dst, p.protocol, p.sport, p.dport}
	if e.Fragments3Tuple {
		id.sport, id.dport = 0, 0
	}
	return id.entry(m.flows.key) &^ clientBit
}

// rememberClient is for endpoints that remember clients: the hash of the flow's own entry, and what chooses the member of
// a flow that has none. The client's entry is looked at, and kept up, for every packet but those of trusted flows that
// were refreshed just now.
func (m *muxModel) rememberClient(p modelPacket, e MuxEndpoint, client modelIdentity, ringHash uint64) (flow uint64, choose func(bool) (uint16, bool)) {
	flow = flowHashBeside(m, p, e)
	syn, end, ack := segmentOf(p)
	later := ack && !syn && !end
	bucket, at, live := m.find(e, flow)
	if live && later && bucket[at].class == FlowTrusted && m.age(bucket[at]) < 2 && !bucket[at].moved {
		if m.keeps(e, bucket[at].member.Member) {
			return flow, nil // it stays where it is
		}
	}
	member, ok := m.client(e, client.entry(m.flows.key)|clientBit, ringHash, later, syn || p.protocol != 6)
	return flow, func(bool) (uint16, bool) { return member, ok }
}

// client finds the member for new flows of a client, remembered or chosen, and remembers it.
func (m *muxModel) client(e MuxEndpoint, hash, ringHash uint64, later, first bool) (uint16, bool) {
	bucket, at, live := m.find(e, hash)
	if live {
		f := &bucket[at]
		member, present := memberWith(e, f.member.Member)
		if present && member.Choosable && m.alive[f.member] {
			class := f.class
			if later {
				class = FlowTrusted
			}
			if class != f.class || m.age(*f) >= 2 || f.moved {
				f.class, f.stamp, f.moved = class, m.now()&0xffff, false
			}
			return f.member.Member, true
		}
	}
	if at < 0 && len(e.Members) > 0 {
		at = m.room(bucket, modelHome(hash), e.Key)
	}
	chosen, ok := m.pick(e, ringHash, first && at >= 0)
	if !ok {
		return 0, false
	}
	if at >= 0 {
		bucket[at] = modelFlow{hash >> 39, FlowUntrusted, m.now() & 0xffff, MemberKey{e.Key, chosen}, false, false}
	}
	return chosen, true
}

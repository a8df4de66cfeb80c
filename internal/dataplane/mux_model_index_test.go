package dataplane

import "net/netip"

// modelIndex is what the model looks up of its state, made once for each state.
type modelIndex struct {
	first   *MuxEndpoint // of the state that it is of, and how many there are
	count   int
	vips    map[netip.Addr]*modelVIP
	longest [4]uint64 // idle ticks by class
}

// modelVIP is what a state has of one VIP.
type modelVIP struct {
	endpoints []int // by index in the state
	policy    *MuxVIP
}

// index is the present state's. States are replaced, never changed in what it holds.
func (m *muxModel) index() *modelIndex {
	var first *MuxEndpoint
	if len(m.state.Endpoints) > 0 {
		first = &m.state.Endpoints[0]
	}
	if m.indexed != nil && m.indexed.first == first && m.indexed.count == len(m.state.Endpoints) {
		return m.indexed
	}
	x := &modelIndex{first: first, count: len(m.state.Endpoints), vips: map[netip.Addr]*modelVIP{}}
	for i, e := range m.state.Endpoints {
		v := x.vips[e.Key.VIP]
		if v == nil {
			v = &modelVIP{}
			x.vips[e.Key.VIP] = v
		}
		v.endpoints = append(v.endpoints, i)
	}
	for i := range m.state.VIPs {
		of := &m.state.VIPs[i]
		if of.Outbound && x.vips[of.VIP] == nil {
			x.vips[of.VIP] = &modelVIP{}
		}
		if v := x.vips[of.VIP]; v != nil {
			v.policy = of
		}
	}
	if m.flows != nil {
		for class := range x.longest {
			x.longest[class] = m.longestOf(FlowClass(class))
		}
	}
	m.indexed = x
	return x
}

// policyOf is what applies to a VIP, nil when nothing is said.
func (m *muxModel) policyOf(vip netip.Addr) *MuxVIP {
	if v := m.index().vips[vip]; v != nil {
		return v.policy
	}
	return nil
}

package dataplane

import (
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// String names a class as the CLI writes it.
func (c FlowClass) String() string {
	switch c {
	case FlowUntrusted:
		return "untrusted"
	case FlowTrusted:
		return "trusted"
	case FlowClosing:
		return "closing"
	}
	return "unknown"
}

// follow goes where the flow table says; false when a member must be chosen.
func (t *Trace) follow(e endpointView, s Segment, f Flow, known bool) bool {
	if !known {
		t.step("the flow table does not know the flow")
		return false
	}
	t.step("the flow table knows it: member %d, %s, last refreshed %s ago", f.Member, f.Class, f.Age)
	m, present := e.members[f.Member]
	ended := s == SegmentOpening && f.Class == FlowClosing
	switch {
	case ended && e.cookies != nil:
		t.step("the connection ended, and a SYN begins another one")
		return false
	case !present || s == SegmentOpening && f.Class != FlowTrusted && !m.alive || !e.keeps(m):
		t.step("member %d is %s: another is chosen", f.Member, unusable(m, present))
		return false
	case ended && !m.choosable:
		t.step("a SYN begins another flow, and member %d takes no new ones", f.Member)
		return false
	case s == SegmentOpening && f.Class == FlowTrusted:
		t.step("the server of an established flow decides whether a SYN begins another one")
	}
	t.forward(f.Member, m)
	return true
}

// flowsFirst tells whether the flow table knows the packet's flow on an endpoint where that goes before its cookie or connection id (flow_known of
// bpf/mux/forward.h).
func (t *Trace) flowsFirst(p Packet, e endpointView, k lb.EndpointKey, view tableView) bool {
	if !e.flowsFirst {
		return false
	}
	f, known := view.remembered(k, flowHash(p, e, k, view.flowKey(), false))
	if !known || f.Class == FlowUntrusted && e.quic != nil {
		return false
	}
	t.step("the endpoint has cookies only since lately: flows in the flow table go first")
	return true
}

// flowHash is the hash of a packet's entry in the flow table, or of its client's.
func flowHash(p Packet, e endpointView, k lb.EndpointKey, key ring.Key, client bool) uint64 {
	const bit = uint64(1) << muxFlowBitFLOW_CLIENT_SHIFT
	source := e.source
	if e.key = key; !client {
		e.source = 0
	}
	hash := new(Trace).identify(p, e, k, ring.TableHash)
	switch {
	case client:
		return hash | bit
	case source != 0:
		return hash &^ bit
	}
	return hash
}

// followClient goes where other flows of the client went; false when a member must be chosen.
func (t *Trace) followClient(p Packet, e endpointView, k lb.EndpointKey, view tableView) bool {
	if e.source == 0 {
		return false
	}
	f, known := view.remembered(k, flowHash(p, e, k, view.flowKey(), true))
	if !known {
		t.step("the flow table does not know the client")
		return false
	}
	t.step("the flow table knows the client: member %d, last refreshed %s ago", f.Member, f.Age)
	m, present := e.members[f.Member]
	if !present || !m.alive || !m.choosable {
		t.step("member %d is %s: another is chosen", f.Member, unusable(m, present))
		return false
	}
	t.forward(f.Member, m)
	return true
}

// flowKey implements tableView.
func (v tablesView) flowKey() ring.Key {
	key := &v.t.mem.config.FlowKey
	return ring.Key{K0: key.K0, K1: key.K1}
}

// spreadKey implements tableView.
func (v tablesView) spreadKey() ring.Key {
	key := &v.t.mem.config.SpreadKey
	return ring.Key{K0: key.K0, K1: key.K1}
}

// remembered implements tableView.
func (v tablesView) remembered(k lb.EndpointKey, hash uint64) (Flow, bool) {
	e, ok := v.t.entries[k]
	if !ok {
		return Flow{}, false
	}
	bucket := &v.t.mem.flows[hash%uint64(len(v.t.mem.flows))]
	for i := range bucket.Entries {
		w := flowWord(load(&bucket.Entries[i]))
		if uint64(w)>>muxFlowBitFLOW_FINGERPRINT_SHIFT != hash>>muxFlowBitFLOW_FINGERPRINT_SHIFT {
			continue
		}
		id, mine := v.t.memberOf(e, w.member())
		if w.class() == 0 || !mine || w.age(v.tick) > v.t.idle(e, w) {
			return Flow{}, false
		}
		return v.t.flow(e, w, id, v.tick), true
	}
	return Flow{}, false
}

// flowKey implements tableView.
func (fakeView) flowKey() ring.Key { return ring.Key{} }

// spreadKey implements tableView.
func (fakeView) spreadKey() ring.Key { return ring.Key{} }

// remembered implements tableView: the fake remembers nothing.
func (fakeView) remembered(lb.EndpointKey, uint64) (Flow, bool) { return Flow{}, false }

package dataplane

import (
	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/ring"
)

// followQUIC goes to the member that a connection id names, and gives the hash that the outer source then varies with; false when it names none that lives.
func (t *Trace) followQUIC(p Packet, e endpointView, view tableView) (hash uint64, ok bool) {
	if e.quic == nil {
		return 0, false
	}
	if p.CID == nil {
		t.step("without a connection id it is the first packet of a connection, whose id is the client's")
		return 0, false
	}
	id, named := e.quic.Member(p.CID)
	if !named {
		t.step("connection id %x names no member: %s", p.CID, unreadable(e.quic, p.CID))
		return 0, false
	}
	how := "in clear"
	switch {
	case e.quic.Format == cid.QUICLB && e.quic.Length(p.CID[0]) == 17:
		how = "by one block"
	case e.quic.Format == cid.QUICLB:
		how = "by four passes"
	}
	if e.quic.Format == cid.QUICLB || e.quic.Format == cid.Plain {
		t.step("connection id %x of configuration %d, read %s, names member %d", p.CID, p.CID[0]>>5, how, id)
	} else {
		t.step("connection id %x, read %s, names member %d", p.CID, how, id)
	}
	m, present := e.members[id]
	if !present || !e.keeps(m) {
		t.step("member %d is %s: the flow table and the ring are asked", id, unusable(m, present))
		return 0, false
	}
	t.forward(id, m)
	return ring.SpreadHash(view.spreadKey(), p.Client, p.ClientPort), true
}

// unreadable says why a connection id names no member.
func unreadable(s *MuxQUIC, id []byte) string {
	if len(id) == 0 {
		return "it has no octets"
	}
	need := s.Length(id[0])
	switch {
	case need > 0:
		return "it is too short"
	case s.Format == cid.MVFST:
		return "its version is 0"
	case id[0]>>5 == cid.Unroutable:
		return "its server had no configuration (0b111)"
	}
	return "its configuration is not live here"
}

// quicAt reads how connection ids are read from what a policy word names.
func (v tablesView) quicAt(policy uint64) *MuxQUIC {
	if policy>>muxPolicyShiftPOLICY_FLAGS_SHIFT&uint64(muxEndpointFlagENDPOINT_QUIC) == 0 {
		return nil
	}
	return quicOf(&v.t.mem.quicSets[policy>>muxPolicyShiftPOLICY_COOKIE_SHIFT-1])
}

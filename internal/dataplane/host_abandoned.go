package dataplane

import (
	"sync/atomic"
	"time"
)

// abandonedAfter is the silence after which a flow whose server ought to have sent something counts as one that its server gave up. It is more than twice the
// longest interval between retransmissions, or window probes, of common kernels (Linux: TCP_RTO_MAX, 120 s), and than the lifetime of an orphaned FIN-WAIT-2
// (Linux: tcp_fin_timeout, 60 s).
const abandonedAfter = 5 * time.Minute

// flowIdleSlack is the part of its idle time by which the last packet of a flow may be later than hostFlowRecord.Seen (flow_touch).
const flowIdleSlack = 64

// protocolTCP is the protocol number of TCP in hostFlowRecord.Scope.
const protocolTCP = 6

// abandoned reports whether the server of a trusted flow gave its connection up without a RST: for abandonedAfter neither end sent a packet, although the
// client has not acknowledged all that the server sent, or although the server closed its side. Kernels end such connections silently after their last
// retransmission (RFC 9293 section 3.8.3), and those that no process holds any more after a FIN-WAIT-2.
func (t *flowTable) abandoned(r *hostFlowRecord, tick uint64) bool {
	const numbers = uint16(hostFlowRecordFlagFLOW_SEQ_OUT | hostFlowRecordFlagFLOW_ACK_IN)
	if r.Scope&0xff != protocolTCP {
		return false
	}
	owes := r.Flags&numbers == numbers && int32(r.SeqOut-r.AckIn) > 0
	if !owes && r.Flags&uint16(hostFlowRecordFlagFLOW_FIN_OUT) == 0 {
		return false
	}
	slack := t.binding[r.Binding].Idle[hostIdleClassIDLE_ESTABLISHED]/flowIdleSlack + 1
	silent := int32(uint32(tick) - r.Seen) // below 0: a packet came after tick was read
	return silent > int32(uint32(tagTick(abandonedAfter))+slack)
}

// doubt makes a trusted flow an untrusted one, which no load counts and which gives way to new flows. Its next packets make it trusted again, as those of a
// new flow do. It returns the new tag, false if another CPU changed the tag.
func (t *flowTable) doubt(word *uint64, tag flowTag) (flowTag, bool) {
	next := tag&^(3<<hostFlowTagFLOW_TAG_CLASS_SHIFT) | flowTag(FlowUntrusted)<<hostFlowTagFLOW_TAG_CLASS_SHIFT
	return next, atomic.CompareAndSwapUint64(word, uint64(tag), uint64(next))
}

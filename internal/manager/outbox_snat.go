package manager

import apiv1 "github.com/shuntlb/shunt/api/v1"

// maxSNATSaid bounds the SNAT requests of a host that wait for the leader. The host repeats dropped
// ones.
const maxSNATSaid = 16384

// hearSNATLocked queues the SNAT part of a node's report for the leader: the newest of a mux, and
// all of a host, in order.
func (o *outbox) hearSNATLocked(n *lastWords, r *apiv1.NodeReport) {
	if r.GetSnatAck() != nil {
		n.snatAck = r.GetSnatAck()
	}
	if !o.linked {
		return
	}
	if n.snat == nil {
		n.snat = &apiv1.NodeReport{}
	}
	n.snat.SnatAck = n.snatAck
	if len(n.snat.GetSnatAsks())+len(n.snat.GetSnatReturns()) < maxSNATSaid {
		n.snat.SnatAsks = append(n.snat.SnatAsks, r.GetSnatAsks()...)
		n.snat.SnatReturns = append(n.snat.SnatReturns, r.GetSnatReturns()...)
	}
	o.queueLocked(n, weightSNAT)
}

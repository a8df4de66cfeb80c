package manager

import apiv1 "github.com/shuntlb/shunt/api/v1"

// maxSNATSaid bounds what of a host's asks waits for the leader. What is dropped the host says again.
const maxSNATSaid = 16384

// hearSNATLocked makes what a node says of SNAT wait for the leader: of a mux the newest, of a host all, in its order.
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

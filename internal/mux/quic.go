package mux

import (
	"slices"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// wantedQUIC returns how to read the connection ids of an endpoint under the live keys of its VIP;
// nil if they are not read. Without keys, which arrive with the plan or a moment later, no id
// selects a member.
func wantedQUIC(e plan.Endpoint, keys []plan.CIDKey) *dataplane.MuxQUIC {
	if e.QUIC == nil || e.Affinity != lb.AffinityCookie {
		return nil
	}
	lengths := cid.Config{ServerID: e.QUIC.ServerIDLength, Nonce: e.QUIC.NonceLength}
	switch e.QUIC.Format {
	case lb.QUICMsquic:
		return &dataplane.MuxQUIC{Format: cid.MSQUIC}
	case lb.QUICMvfst:
		return &dataplane.MuxQUIC{Format: cid.MVFST}
	case lb.QUICLBPlain:
		return &dataplane.MuxQUIC{Format: cid.Plain, Configs: []cid.Config{lengths}}
	}
	out := &dataplane.MuxQUIC{Format: cid.QUICLB}
	for _, k := range keys {
		c := lengths
		c.ID, c.Key = k.ConfigID(), k.Key
		out.Configs = append(out.Configs, c)
	}
	return out
}

// keep copies the connection id keys of retired VIPs from the previous plan into p.
func (l *lingering) keep(p *plan.Plan, before plan.Plan) {
	var stay []plan.CIDKeys
	for _, k := range before.CIDs {
		if l.has(k.VIP) && plan.CIDsOf(p.CIDs, lb.EndpointKey{VNI: k.VNI, VIP: k.VIP}) == nil {
			stay = append(stay, k)
		}
	}
	if len(stay) > 0 {
		p.CIDs = slices.SortedFunc(slices.Values(append(stay, p.CIDs...)), plan.CompareCIDs)
	}
}

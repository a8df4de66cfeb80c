package manager

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// ownHealth returns the part of a host's report that counts: verdicts on members of this host.
// Verdicts on other members, whether mistaken or malicious, and those that name no endpoint are
// dropped: muxes and other managers do not receive them. Withdrawals are all kept, because they
// only withdraw verdicts of this host.
func (v *view) ownHealth(s *session, h *apiv1.HealthReport) *apiv1.HealthReport {
	own := map[healthKey]map[uint32]bool{}
	for _, e := range h.GetEndpoints() {
		own[healthKeyOf(e)] = map[uint32]bool{}
	}
	v.ownMembers(s, own)
	out := &apiv1.HealthReport{Full: h.GetFull()}
	for _, e := range h.GetEndpoints() {
		ids := own[healthKeyOf(e)]
		kept := &apiv1.EndpointHealth{
			Vni: e.GetVni(), Vip: e.GetVip(), Protocol: e.GetProtocol(), Port: e.GetPort(), PortEnd: e.GetPortEnd(),
			Alive: among(ids, e.GetAlive()), Dead: among(ids, e.GetDead()),
		}
		for _, w := range e.GetWords() {
			if members := among(ids, w.GetMembers()); len(members) > 0 {
				kept.Words = append(kept.Words, &apiv1.HealthWords{Words: health.Told(w.GetWords()), Members: members})
			}
		}
		if !h.GetFull() {
			kept.Unknown = e.GetUnknown()
		}
		if len(kept.Alive)+len(kept.Dead)+len(kept.Unknown) > 0 {
			out.Endpoints = append(out.Endpoints, kept)
		}
	}
	return out
}

// ownMembers sets the members of the endpoints in of that are on a host.
func (v *view) ownMembers(s *session, of map[healthKey]map[uint32]bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	node := v.state.Nodes[s.name]
	if node == nil || node.Role != lb.RoleHost {
		return
	}
	for _, addr := range node.Addresses {
		for _, item := range v.items.byHost[addr] {
			b := item.GetBinding()
			if ids := of[healthKey{b.GetVni(), b.GetVip(), b.GetProtocol(), b.GetPort(), b.GetPortEnd()}]; ids != nil {
				ids[b.GetMember()] = true
			}
		}
	}
}

func among(ids map[uint32]bool, said []uint32) (out []uint32) {
	for _, id := range said {
		if ids[id] {
			out = append(out, id)
		}
	}
	return out
}

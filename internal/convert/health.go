package convert

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// The values of NodeHealth.verdict and HealthChange.verdict.
const (
	Healthy   = "healthy"
	Unhealthy = "unhealthy"
	Unknown   = "unknown"
	// Mixed: muxes differ.
	Mixed = "mixed"
	// Damped: it flapped, and counts as unhealthy for a time.
	Damped = "damped"
	// Held: the node considers itself isolated, and this is an earlier verdict.
	Held = "held"
)

// EndpointMemberOf returns the member of a request.
func EndpointMemberOf(m *apiv1.EndpointMember) (lb.EndpointKey, uint16, error) {
	r := &reader{}
	key, id := r.key(m.GetVni(), m.GetVip(), m.GetProtocol(), m.GetPort(), m.GetPortEnd()), r.word("member", m.GetMember())
	return key, id, r.err()
}

// ToEndpointMember writes the key of a member.
func ToEndpointMember(k lb.EndpointKey, id uint16) *apiv1.EndpointMember {
	return &apiv1.EndpointMember{
		Vni: k.VNI, Vip: text(k.VIP), Protocol: k.Protocol.String(), Port: uint32(k.Port), PortEnd: uint32(k.PortEnd), Member: uint32(id),
	}
}

// VerdictWord returns one node's verdict about a member, by its report: empty when the node does
// not check it.
func VerdictWord(role lb.Role, m *apiv1.MemberStatus) string {
	switch {
	case role == lb.RoleHost && !m.GetChecked():
		return ""
	case m.GetUnknown():
		return Unknown
	case m.GetHeld():
		return Held
	case m.GetDamped():
		return Damped
	case m.GetAlive():
		return Healthy
	}
	return Unhealthy
}

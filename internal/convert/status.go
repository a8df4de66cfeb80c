package convert

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// MemberOf returns the member of a report.
func MemberOf(m *apiv1.MemberStatus) (lb.EndpointKey, uint16, error) {
	r := &reader{}
	key, id := r.key(0, m.GetVip(), m.GetProtocol(), m.GetPort(), m.GetPortEnd()), r.word("member", m.GetMember())
	return key, id, r.err()
}

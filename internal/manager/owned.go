package manager

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
)

// owned holds the services that a caller of role tenant may see; nil: the caller may see all.
type owned map[string]bool

// has returns true if the caller may see a service.
func (o owned) has(service string) bool { return o == nil || o[service] }

// ownOf returns the services that a caller may see.
func (v *view) ownOf(id identity) owned {
	if id.role != pki.RoleTenant {
		return nil
	}
	return owned((&scope{identity: id, view: v}).services())
}

// nodes returns the statuses with members, answers, refused packets or withheld VIPs of the tenant,
// reduced to these.
func (o owned) nodes(nodes []*apiv1.NodeStatus) (out []*apiv1.NodeStatus) {
	for _, n := range nodes {
		members := only(n.GetMembers(), func(m *apiv1.MemberStatus) bool { return o[m.GetService()] })
		answers := only(n.GetAnswers(), func(a *apiv1.AnswerStatus) bool { return o[a.GetService()] })
		refused := only(n.GetRefused(), func(r *apiv1.RefusedStatus) bool { return o[r.GetService()] })
		withheld := only(n.GetWithheld(), func(w *apiv1.WithheldStatus) bool { return o[w.GetService()] })
		if len(members)+len(answers)+len(refused)+len(withheld) > 0 {
			out = append(out, &apiv1.NodeStatus{
				Name: n.GetName(), Role: n.GetRole(), Connected: n.GetConnected(), LastSeen: n.GetLastSeen(), SyncedRevision: n.GetSyncedRevision(), Members: members, Answers: answers,
				Withheld: withheld, Refused: refused,
			})
		}
	}
	return out
}

package manager

import (
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// witness is a mux that changed its mind on a member, and why.
type witness struct {
	mux, words string
	// at is when the manager heard of it.
	at time.Time
}

// earlier finds what an earlier report of a mux said of members.
type earlier struct {
	members []*apiv1.MemberStatus
	// byName is made when members are not where they were; nil before.
	byName map[healthKey]map[uint32]*apiv1.MemberStatus
}

// of is what it said of the member that is at a place of the later report; nil: nothing.
func (e *earlier) of(at int, m *apiv1.MemberStatus) *apiv1.MemberStatus {
	if at < len(e.members) && sameMember(e.members[at], m) {
		return e.members[at]
	}
	if e.byName == nil {
		e.byName = map[healthKey]map[uint32]*apiv1.MemberStatus{}
		for _, old := range e.members {
			key := memberKeyOf(old)
			if e.byName[key] == nil {
				e.byName[key] = map[uint32]*apiv1.MemberStatus{}
			}
			e.byName[key][old.GetMember()] = old
		}
	}
	return e.byName[memberKeyOf(m)][m.GetMember()]
}

func sameMember(a, b *apiv1.MemberStatus) bool {
	return a.GetMember() == b.GetMember() && a.GetPort() == b.GetPort() && a.GetPortEnd() == b.GetPortEnd() && a.GetVip() == b.GetVip() && a.GetProtocol() == b.GetProtocol()
}

// noteLocked keeps who said last why a member is dead, or why it is alive again.
func (v *vote) noteLocked(mux string, m, before *apiv1.MemberStatus, at time.Time) {
	known := before != nil && !before.GetUnknown()
	switch {
	case m.GetUnknown(), known && before.GetAlive() == m.GetAlive():
	case !m.GetAlive():
		v.fell = &witness{mux, m.GetLastCheck(), at}
	case known || v.down > 0: // else it is merely new
		v.rose = &witness{mux, m.GetLastCheck(), at}
	}
}

// because is who made a member dead, or alive again, as far as it is known.
func (o *opinions) because(key lb.EndpointKey, id uint16, dead bool) (witness, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v := o.votes[key][id]
	if v == nil {
		return witness{}, false
	}
	w := v.rose
	if dead {
		w = v.fell
	}
	if w == nil {
		return witness{}, false
	}
	return *w, true
}

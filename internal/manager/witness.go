package manager

import (
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// witness is a mux whose verdict on a member changed, and the reason.
type witness struct {
	mux, words string
	// at is when the manager received the change.
	at time.Time
}

// earlier finds members in an earlier report of a mux.
type earlier struct {
	members []*apiv1.MemberStatus
	// byName is built when members changed their positions. It is nil before.
	byName map[healthKey]map[uint32]*apiv1.MemberStatus
}

// of returns the earlier status of the member at position at of the later report, or nil if there
// is none.
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

// noteLocked records the mux that last reported a member dead, or alive again, with the reason.
func (v *vote) noteLocked(mux string, m, before *apiv1.MemberStatus, at time.Time) {
	known := before != nil && !before.GetUnknown()
	switch {
	case m.GetUnknown(), known && before.GetAlive() == m.GetAlive():
	case !m.GetAlive():
		v.fell = &witness{mux, m.GetLastCheck(), at}
	case known || v.down > 0: // else the member is new
		v.rose = &witness{mux, m.GetLastCheck(), at}
	}
}

// because returns the mux that last reported a member dead, or alive again. It returns false if
// that is unknown.
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

package manager

import (
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// opinions holds the health of members as connected muxes report it. It is in memory only. A
// manager that starts receives the reports within a second, and until then the stored state stays.
type opinions struct {
	mu sync.Mutex
	// said holds the members in the newest report of each mux, and its stream.
	said  map[string]testimony
	votes map[lb.EndpointKey]map[uint16]*vote
	// dirty holds endpoints with a member whose health changed. wake has room for one.
	dirty map[lb.EndpointKey]bool
	wake  chan struct{}
}

// testimony is the newest report of a mux. Its members are never modified.
type testimony struct {
	stream  uint64
	members []*apiv1.MemberStatus
}

// vote sums up the reports about one member.
type vote struct {
	up, down int
	heard    plan.Heard
	// fell and rose are the last muxes that reported it dead, and alive again; nil: none.
	fell, rose *witness
}

func newOpinions() *opinions {
	return &opinions{
		said: map[string]testimony{}, votes: map[lb.EndpointKey]map[uint16]*vote{}, dirty: map[lb.EndpointKey]bool{},
		wake: make(chan struct{}, 1),
	}
}

// report stores a mux's newest report. It ignores streams that ended.
func (o *opinions) report(s *session, members []*apiv1.MemberStatus, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.said[s.name]
	if s.role != lb.RoleMux || s.ctx.Err() != nil || old.stream > s.number {
		return
	}
	o.said[s.name] = testimony{s.number, members}
	o.changeLocked(s.name, old.members, members, now)
}

// gone removes the report of a stream, unless the node has a newer one.
func (o *opinions) gone(s *session, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.said[s.name]
	if old.stream != s.number {
		return
	}
	delete(o.said, s.name)
	o.changeLocked(s.name, old.members, nil, now)
}

// changeLocked replaces the votes of one mux. Most reports repeat the last one, so that entries
// equal at both ends are skipped.
func (o *opinions) changeLocked(mux string, old, now []*apiv1.MemberStatus, at time.Time) {
	for len(old) > 0 && len(now) > 0 && sameOpinion(old[0], now[0]) {
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && sameOpinion(old[len(old)-1], now[len(now)-1]) {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	changed, before := map[*vote]memberRef{}, earlier{members: old}
	for i, m := range now {
		if v := o.countLocked(m, 1, changed); v != nil {
			v.noteLocked(mux, m, before.of(i, m), at)
		}
	}
	for _, m := range old {
		o.countLocked(m, -1, changed)
	}
	for v, ref := range changed {
		o.settleLocked(v, ref, at)
	}
}

// memberRef names a member.
type memberRef struct {
	endpoint lb.EndpointKey
	id       uint16
}

// sameOpinion reports whether two statuses have the same health of the same member.
func sameOpinion(a, b *apiv1.MemberStatus) bool {
	return a.GetAlive() == b.GetAlive() && a.GetUnknown() == b.GetUnknown() && sameMember(a, b)
}

// countLocked adds a vote, or removes it, and returns the member's vote; nil if its health is
// unknown.
func (o *opinions) countLocked(m *apiv1.MemberStatus, by int, changed map[*vote]memberRef) *vote {
	key, id, err := convert.MemberOf(m)
	if err != nil || m.GetUnknown() {
		return nil
	}
	of := o.votes[key]
	if of == nil {
		of = map[uint16]*vote{}
		o.votes[key] = of
	}
	v := of[id]
	if v == nil {
		v = &vote{}
		of[id] = v
	}
	if m.GetAlive() {
		v.up += by
	} else {
		v.down += by
	}
	changed[v] = memberRef{key, id}
	return v
}

// settleLocked sets the health of a member from its votes.
func (o *opinions) settleLocked(v *vote, ref memberRef, now time.Time) {
	before := v.heard.Health
	switch {
	case v.up > 0:
		v.heard.Health = plan.HeardAlive
	case v.down > 0:
		v.heard.Health = plan.HeardDead
	default:
		delete(o.votes[ref.endpoint], ref.id)
		if len(o.votes[ref.endpoint]) == 0 {
			delete(o.votes, ref.endpoint)
		}
		return
	}
	if v.heard.Health == before {
		return
	}
	back := before == plan.HeardDead
	v.heard.Since, v.heard.Fresh = time.Time{}, back
	if back || v.heard.Health == plan.HeardDead {
		v.heard.Since = now.Round(0).UTC()
	}
	o.dirty[ref.endpoint] = true
	notify.Send(o.wake)
}

// heard returns a function that returns the reported health of an endpoint's members.
func (o *opinions) heard(key lb.EndpointKey) func(uint16) plan.Heard {
	return func(id uint16) plan.Heard {
		o.mu.Lock()
		defer o.mu.Unlock()
		if v := o.votes[key][id]; v != nil {
			return v.heard
		}
		return plan.Heard{}
	}
}

// take returns and clears the set of endpoints with changes.
func (o *opinions) take() map[lb.EndpointKey]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	dirty := o.dirty
	o.dirty = map[lb.EndpointKey]bool{}
	return dirty
}

// considered marks the recoveries of an endpoint's members up to a time as processed.
func (o *opinions) considered(key lb.EndpointKey, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.votes[key] {
		if !v.heard.Since.After(until) {
			v.heard.Fresh = false
		}
	}
}

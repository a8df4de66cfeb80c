package manager

import (
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

const (
	// othersFresh is the maximum age of another mux's report. Muxes report every second.
	othersFresh = 5 * time.Second
	// othersPace is the minimum time between two replies to one mux, each of which costs a scan of
	// all reports.
	othersPace = time.Second
)

// askers holds the muxes that consider themselves isolated and wait for the verdicts of others.
// Only the leader replies, because it has the reports of all nodes.
type askers struct {
	// looking is held while a reply is computed. Replies are computed one after the other.
	looking sync.Mutex

	mu sync.Mutex
	// waiting holds the muxes whose reply is not computed yet, answered the time of each mux's last
	// reply.
	waiting  map[string]bool
	answered map[string]time.Time
}

func newAskers() *askers {
	return &askers{waiting: map[string]bool{}, answered: map[string]time.Time{}}
}

// begin records a mux's request and returns how long its reply must wait; false: a reply is pending
// already.
func (a *askers) begin(mux string, now time.Time) (wait time.Duration, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting[mux] {
		return 0, false
	}
	for name, at := range a.answered {
		if now.Sub(at) >= othersPace {
			delete(a.answered, name)
		}
	}
	a.waiting[mux] = true
	if last, known := a.answered[mux]; known {
		wait = last.Add(othersPace).Sub(now)
	}
	return wait, true
}

// end records that a reply is about to be computed. Later requests need another reply.
func (a *askers) end(mux string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, mux)
	a.answered[mux] = now
}

// askedForOthers schedules the report of others' verdicts to a mux. It does not block.
func (m *Manager) askedForOthers(s *session) {
	if s.role != lb.RoleMux || m.present() == nil {
		return
	}
	wait, first := m.askers.begin(s.name, m.o.Clock.Now())
	if !first {
		return
	}
	go func() {
		if wait > 0 {
			select {
			case <-m.o.Clock.After(wait):
			case <-s.ctx.Done():
			}
		}
		m.askers.looking.Lock()
		defer m.askers.looking.Unlock()
		m.askers.end(s.name, m.o.Clock.Now())
		if s.ctx.Err() == nil {
			s.ask(&apiv1.PlanUpdate{Others: m.others(s.name)})
		}
	}()
}

// others returns the health that other muxes and hosts report of the members in this mux's last
// report: alive if one of them reports alive, dead if all reports are dead. Reports of muxes that
// consider themselves isolated or whose last report is too old do not count.
func (m *Manager) others(mux string) *apiv1.HealthReport {
	of := newHealthMerge(&apiv1.HealthReport{Full: true})
	told := m.opinions.testimonies()
	for _, member := range told[mux] {
		of.set(memberKeyOf(member), member.GetMember(), word{said: saidUnknown})
	}
	for _, witness := range m.reports.witnesses(mux, m.o.Clock.Now()) {
		for _, member := range told[witness] {
			switch {
			case member.GetUnknown(), member.GetDamped(): // a flapping member is neither
			case member.GetAlive():
				of.hear(memberKeyOf(member), member.GetMember(), saidAlive)
			default:
				of.hear(memberKeyOf(member), member.GetMember(), saidDead)
			}
		}
	}
	m.verdicts.tellTo(of)
	return of.report()
}

// memberKeyOf returns the endpoint of a member in a status, which contains no VNI.
func memberKeyOf(m *apiv1.MemberStatus) healthKey {
	return healthKey{0, m.GetVip(), m.GetProtocol(), m.GetPort(), m.GetPortEnd()}
}

// hear adds a report about a member that is in the merge. Alive overrides dead, and both override
// unknown.
func (m *healthMerge) hear(key healthKey, id uint32, said int) {
	of := m.members[key]
	if old, wanted := of[id]; wanted && (old == saidUnknown || said == saidAlive) && said != saidUnknown {
		of[id] = said
	}
}

// tellTo adds the hosts' verdicts on the members in a merge.
func (v *verdicts) tellTo(of *healthMerge) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, members := range of.members {
		if v.words[key] == nil {
			continue
		}
		for id := range members {
			of.hear(key, id, v.words.last(key, id).said)
		}
	}
}

// testimonies returns the members in the newest report of each connected mux. No list is ever
// modified.
func (o *opinions) testimonies() map[string][]*apiv1.MemberStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string][]*apiv1.MemberStatus, len(o.said))
	for name, t := range o.said {
		out[name] = t.members
	}
	return out
}

// witnesses returns the muxes whose reports count for the mux but.
func (r *reports) witnesses(but string, now time.Time) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for name, h := range r.heard {
		st := h.status
		if name != but && st.GetConnected() && st.GetRole() == string(lb.RoleMux) && !st.GetSuspect() && now.Sub(h.at) <= othersFresh {
			out = append(out, name)
		}
	}
	return out
}

package manager

import (
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

const (
	// othersFresh is how old what another mux said may be: muxes say it every second.
	othersFresh = 5 * time.Second
	// othersPace is the least time between two answers to one mux, each of which costs a look at all reports.
	othersPace = time.Second
)

// askers are the muxes that suspect themselves and wait for what others see. Only the leader answers: it knows all nodes.
type askers struct {
	// looking is held while an answer is made: they are made one after the other.
	looking sync.Mutex

	mu sync.Mutex
	// waiting are those whose answer is not made yet, answered when each got its last one.
	waiting  map[string]bool
	answered map[string]time.Time
}

func newAskers() *askers {
	return &askers{waiting: map[string]bool{}, answered: map[string]time.Time{}}
}

// begin notes that a mux asks, and how long its answer has to wait; false: one is on its way.
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

// end notes that an answer is about to be made: who asks from here on asks anew.
func (a *askers) end(mux string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, mux)
	a.answered[mux] = now
}

// askedForOthers lets a mux hear soon what others see. It does not wait.
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

// others is what muxes but this one, and hosts, see of the members that this mux reported last: alive when somebody says so,
// dead when all who say something say dead. A mux that suspects itself says nothing, and neither does one that is silent.
func (m *Manager) others(mux string) *apiv1.HealthReport {
	of := newHealthMerge(&apiv1.HealthReport{Full: true})
	told := m.opinions.testimonies()
	for _, member := range told[mux] {
		of.set(memberKeyOf(member), member.GetMember(), word{said: saidUnknown})
	}
	for _, witness := range m.reports.witnesses(mux, m.o.Clock.Now()) {
		for _, member := range told[witness] {
			switch {
			case member.GetUnknown(), member.GetDamped(): // one that flaps is neither
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

// memberKeyOf is the endpoint of a member in a status, which names no VNI.
func memberKeyOf(m *apiv1.MemberStatus) healthKey {
	return healthKey{0, m.GetVip(), m.GetProtocol(), m.GetPort(), m.GetPortEnd()}
}

// hear takes in one more opinion of a member that is in the merge: alive counts more than dead, and both more than unknown.
func (m *healthMerge) hear(key healthKey, id uint32, said int) {
	of := m.members[key]
	if old, wanted := of[id]; wanted && (old == saidUnknown || said == saidAlive) && said != saidUnknown {
		of[id] = said
	}
}

// tellTo adds what hosts say of the members in a merge.
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

// testimonies are the members of the newest report of each connected mux; no list is ever modified.
func (o *opinions) testimonies() map[string][]*apiv1.MemberStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string][]*apiv1.MemberStatus, len(o.said))
	for name, t := range o.said {
		out[name] = t.members
	}
	return out
}

// witnesses are the muxes, but for one, whose word counts for it.
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

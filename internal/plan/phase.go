package plan

import (
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// slowSteps is the number of steps of a slow start: 10 %, 20 %, … of the member's own weight.
const slowSteps = 10

// Heard is the combined health of a member in the reports of all connected muxes.
type Heard struct {
	Health Hearsay
	// Since is the time when a dead member died. For a live one it is the time of its return, or
	// zero if it was never reported dead.
	Since time.Time
	// Fresh reports that its return has not been applied yet. A return begins a slow start once.
	Fresh bool
}

// Hearsay is the combined health in the muxes' reports.
type Hearsay uint8

// HeardAlive: at least one mux reports it alive. HeardDead: at least one reports it dead, and none
// alive.
const (
	HeardNothing Hearsay = iota
	HeardAlive
	HeardDead
)

func (in *Input) heard(id uint16) Heard {
	if in.Heard == nil {
		return Heard{}
	}
	return in.Heard(id)
}

// staying returns the wanted backends that are to be members. A draining backend that is not a
// member does not become one, and a member leaves after draining for DrainTimeout. Without
// DrainTimeout all stay.
func (in *Input) staying(prev EndpointState) []Wanted {
	if in.DrainTimeout == 0 {
		return in.Wanted
	}
	members := make(map[lb.BackendKey]*MemberState, len(prev.Members))
	for i := range prev.Members {
		members[prev.Members[i].Backend] = &prev.Members[i]
	}
	out := make([]Wanted, 0, len(in.Wanted))
	for _, w := range in.Wanted {
		m := members[w.Backend]
		drained := w.Weight == 0 && (m == nil || !m.Draining.IsZero() && in.Now.Sub(m.Draining) >= in.DrainTimeout)
		if !drained {
			out = append(out, w)
		}
	}
	return out
}

// phase sets the fields that change with time: the begin of draining and warming, and Down. next
// have their wanted weights; prev are those of the previous state.
func (in *Input) phase(prev, next []MemberState) {
	before := make(map[uint16]*MemberState, len(prev))
	for i := range prev {
		before[prev[i].ID] = &prev[i]
	}
	grown := false
	for i := range next {
		m, old := &next[i], before[next[i].ID]
		m.Draining = in.drainingSince(m, old)
		grown = grown || in.grown(m, old)
	}
	for i := range next {
		next[i].Warming = in.warmingSince(&next[i], before[next[i].ID], grown)
	}
	in.bake(before, next)
}

// fall records which members are dead, and which were dead within the repair window. A member
// without reports keeps its record.
func (in *Input) fall(prev, next []MemberState) {
	if !in.Revives || in.RepairWindow == 0 {
		return
	}
	before := make(map[uint16]*MemberState, len(prev))
	for i := range prev {
		before[prev[i].ID] = &prev[i]
	}
	for i := range next {
		m, old := &next[i], before[next[i].ID]
		if m.Weight == 0 {
			continue // without slots
		}
		was := old != nil && old.Fallen
		h := in.heard(m.ID)
		m.Fallen = h.Health == HeardDead || h.Health == HeardNothing && was
		switch {
		case was && !m.Fallen:
			m.Revived = in.Now
		case old != nil && !old.Revived.IsZero() && in.Now.Before(in.settles(old)):
			m.Revived = old.Revived
		}
	}
}

// settles returns the time at which the record of a member's death expires.
func (in *Input) settles(m *MemberState) time.Time { return m.Revived.Add(in.RepairWindow) }

func (in *Input) drainingSince(m, old *MemberState) time.Time {
	switch {
	case m.Weight > 0:
		return time.Time{}
	case old != nil && !old.Draining.IsZero():
		return old.Draining
	}
	return in.Now
}

// began returns the time when the member began to take flows again: now for a new one and one that
// stopped draining, the time of its return for one that was dead, and zero for others.
func (in *Input) began(m, old *MemberState) time.Time {
	if old == nil || old.Weight == 0 {
		return in.Now
	}
	switch h := in.heard(m.ID); {
	case h.Health == HeardAlive && h.Fresh:
		return h.Since
	case h.Health == HeardAlive && old.Down:
		return in.Now
	}
	return time.Time{}
}

// grown reports whether the member has had its full share long enough that others can grow relative
// to it.
func (in *Input) grown(m, old *MemberState) bool {
	if m.Weight == 0 || old == nil || old.Weight == 0 || old.Down || !old.Warming.IsZero() {
		return false
	}
	h := in.heard(m.ID)
	return h.Health == HeardNothing || h.Health == HeardAlive && !in.grows(h.Since)
}

// grows reports whether a member that returned at since is still in its slow start. It may have
// returned after Now was read.
func (in *Input) grows(since time.Time) bool {
	return in.SlowStart > 0 && !since.IsZero() && in.Now.Sub(since) < in.SlowStart
}

// warmingSince returns the time when the member's slow start began, or zero. A slow start begins
// only if another member has its full share, because it has no effect when all members grow.
func (in *Input) warmingSince(m, old *MemberState, grown bool) time.Time {
	if m.Weight == 0 {
		return time.Time{}
	}
	var since time.Time
	if old != nil && old.Weight > 0 {
		since = old.Warming
	}
	if began := in.began(m, old); grown && began.After(since) {
		since = began
	}
	if !in.grows(since) {
		return time.Time{}
	}
	return since
}

// bake sets Down: a member goes down after it was dead for DownAfter, and stays down until a mux
// reports it alive. If that leaves no live member, those that no mux reports dead any more come up
// again; if still none is live, no member is down.
func (in *Input) bake(before map[uint16]*MemberState, next []MemberState) {
	if in.markDown(next, before) || in.markDown(next, nil) {
		return
	}
	for i := range next {
		next[i].Down = false
	}
}

// markDown sets Down; members in before that are down stay down without reports. It reports whether
// a live member is left.
func (in *Input) markDown(next []MemberState, before map[uint16]*MemberState) (live bool) {
	for i := range next {
		m := &next[i]
		if m.Weight == 0 {
			continue
		}
		h, old := in.heard(m.ID), before[m.ID]
		m.Down = h.Health != HeardAlive && old != nil && old.Down && in.DownAfter > 0 || in.dead(h)
		live = live || !m.Down && h.Health != HeardDead
	}
	return live
}

// dead reports whether a member was dead long enough to be removed from the ring.
func (in *Input) dead(h Heard) bool {
	return in.DownAfter > 0 && h.Health == HeardDead && in.Now.Sub(h.Since) >= in.DownAfter
}

// scale converts wanted weights to ring weights: ten times as large while any member grows, so that
// the steps are integers. Equal shares give an equal ring.
func scale(members []MemberState, slowStart time.Duration, now time.Time) {
	warm := false
	for _, m := range members {
		warm = warm || !m.Warming.IsZero()
	}
	if !warm {
		return
	}
	for i := range members {
		m := &members[i]
		step := slowSteps
		if !m.Warming.IsZero() {
			step = slowStep(now.Sub(m.Warming), slowStart)
		}
		m.Weight *= uint16(step)
	}
}

// slowStep returns the tenths of its weight that a member has: at least one, and below ten until
// the end.
func slowStep(grown, slowStart time.Duration) int {
	return min(max(int(slowSteps*grown/slowStart), 1), slowSteps-1)
}

// Due returns the next time at which Advance changes the state without other input; zero if there
// is none. It may be early, never late.
func Due(st *EndpointState, in Input) time.Time {
	var due time.Time
	at := func(t time.Time) {
		if t.After(in.Now) && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	at(st.Young)
	at(st.Fading)
	if len(st.History) > 0 {
		at(in.forgets(&st.History[0]))
	}
	for i := range st.Members {
		m := &st.Members[i]
		if !m.Warming.IsZero() {
			for step := range slowSteps {
				// Rounded up, because a step is reached only when the integer division yields it.
				at(m.Warming.Add((in.SlowStart*time.Duration(step+1) + slowSteps - 1) / slowSteps))
			}
		}
		if !m.Draining.IsZero() && in.DrainTimeout > 0 {
			at(m.Draining.Add(in.DrainTimeout))
		}
		if !m.Revived.IsZero() {
			at(in.settles(m))
		}
		if h := in.heard(m.ID); h.Health == HeardDead && !m.Down && m.Weight > 0 && in.DownAfter > 0 {
			at(h.Since.Add(in.DownAfter))
		}
	}
	return due
}

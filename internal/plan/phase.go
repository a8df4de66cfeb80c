package plan

import (
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// slowSteps are the weights of a slow start: 10 %, 20 %, … of the member's own.
const slowSteps = 10

// Heard is what all connected muxes together say of a member.
type Heard struct {
	Health Hearsay
	// Since is when a dead one died. Of a live one it is when it came back, zero when it was never heard to be dead.
	Since time.Time
	// Fresh: that it came back was not taken into account yet. It begins a slow start once.
	Fresh bool
}

// Hearsay is the sum of opinions.
type Hearsay uint8

// HeardAlive: one mux at least calls it alive. HeardDead: one at least calls it dead, and none alive.
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

// staying are the wanted backends that have a place: a backend that drains and is no member needs none, and a member
// loses its own when it drained for DrainTimeout. Without DrainTimeout all have one.
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

// phase fills in what time does to members: since when they drain or grow, and who is down. next have their wanted
// weights; prev are those of the state before.
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

// fall notes who is dead, and who was within the window of repair. Of one that nobody speaks of it stays as it was.
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

// settles is when it is forgotten that a member was dead.
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

// began is when the member began to take flows afresh: now for a new one and one that does not drain any more, when it
// came back for one that was dead; zero for others.
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

// grown tells whether the member takes its full share for some time already, so that others can grow beside it.
func (in *Input) grown(m, old *MemberState) bool {
	if m.Weight == 0 || old == nil || old.Weight == 0 || old.Down || !old.Warming.IsZero() {
		return false
	}
	h := in.heard(m.ID)
	return h.Health == HeardNothing || h.Health == HeardAlive && !in.grows(h.Since)
}

// grows tells whether a member that returned at that time is not grown yet. It may have returned after Now was looked at.
func (in *Input) grows(since time.Time) bool {
	return in.SlowStart > 0 && !since.IsZero() && in.Now.Sub(since) < in.SlowStart
}

// warmingSince is when the member began to grow. It begins when it returns while another one is grown: where all
// would grow, none has to.
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

// bake decides who is down: who was dead for DownAfter, and stays down until a mux calls it alive. When that leaves
// nobody to bake onto, those that nobody calls dead any more are up again; when nobody is left even so, none is down.
func (in *Input) bake(before map[uint16]*MemberState, next []MemberState) {
	if in.markDown(next, before) || in.markDown(next, nil) {
		return
	}
	for i := range next {
		next[i].Down = false
	}
}

// markDown sets who is down, where before holds those whose being down counts although nobody speaks of them. It tells
// whether a live member is left.
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

// dead tells whether a member was dead for so long that it is baked in.
func (in *Input) dead(h Heard) bool {
	return in.DownAfter > 0 && h.Health == HeardDead && in.Now.Sub(h.Since) >= in.DownAfter
}

// scale turns wanted weights into those of the ring: ten times as large while a member grows, so that its steps are
// whole. Equal shares give an equal ring.
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

// slowStep is the tenth of its weight that a member has: at least one, and below ten until the end.
func slowStep(grown, slowStart time.Duration) int {
	return min(max(int(slowSteps*grown/slowStart), 1), slowSteps-1)
}

// Due is the next time at which Advance changes the state although nothing else does; zero when there is none. It may
// be early, never late.
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
				// Rounded up: a step is reached when the division says so.
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

package health

import "time"

// What makes a machine that asks suspect itself.
const (
	// suspectServices is the least number of services that must be lost, suspectShare the least share, in percent, of the services
	// that it has news of.
	suspectServices = 3
	suspectShare    = 50
	// lostShare is the share of a service's members, in percent, that must be lost for the service to be.
	lostShare = 95
	// LostWindow is how long a member counts as lost after its verdict followed: services that die one after the other add up to no
	// suspicion.
	LostWindow = 5 * time.Second
	// DefaultGrace is how long failing verdicts are held.
	DefaultGrace = 10 * time.Second
)

// Phase is how far a machine trusts what it sees.
type Phase uint8

const (
	// Trusting: verdicts count.
	Trusting Phase = iota
	// Holding: it suspects itself. Members that fell silent keep their last verdicts, but for those that others call dead.
	Holding
	// Conceding: it still suspects itself, but the time of grace is over: members that are silent fall, but for those that others
	// call alive.
	Conceding
)

// Suspicion decides whether a machine that asks is itself what is broken: when nothing comes back from nearly all members of many
// services at once, which were there just before. A refusal or a bad answer is a sign that the way works. What it costs to be told
// of a result does not depend on how many members there are. The zero value suspects, and holds nothing back.
type Suspicion struct {
	// Grace is how long failing verdicts are held once it suspects.
	Grace time.Duration
	// news is the number of services that have members in contact or lost, lost that of those that are lost.
	news, lost int
	// fallen are contacts with the times at which they fell, in order; some may have come back.
	fallen []fallenContact
	// since is when it began to suspect; zero: it does not.
	since time.Time
	phase Phase
}

// Reach is what a machine that asks reaches of a service. The zero value is that of no members.
type Reach struct{ reached, lost int }

func (r *Reach) news() bool   { return r.reached+r.lost > 0 }
func (r *Reach) isLost() bool { return r.lost > 0 && r.lost*100 >= lostShare*(r.reached+r.lost) }

// contact is what the last results of a member say of the way to it.
type contact uint8

const (
	// unknown: nothing, or it was dead before it fell silent.
	unknown contact = iota
	// refusing: there is an answer, and its verdict is dead.
	refusing
	// answering: there is an answer, and it is alive.
	answering
	// silent: there is none, and it is alive.
	silent
	// fell: there is none, and its verdict followed from that.
	fell
)

// Contact is a member of a service as the machine reaches it. The zero value is one that was not asked.
type Contact struct {
	of    *Reach
	state contact
	fell  time.Time
}

type fallenContact struct {
	*Contact
	at time.Time
}

// Fell tells that a member was taken for dead, not longer than LostWindow ago as of the last Decide, because it is silent.
func (c *Contact) Fell() bool { return c.state == fell }

// Heard notes what the latest result says of a member of a service: whether it is silence, and whether the member is alive by the
// machine's own verdict, which may be held.
func (s *Suspicion) Heard(c *Contact, of *Reach, isSilent, alive bool, now time.Time) {
	next := unknown
	switch {
	case !isSilent && alive:
		next = answering
	case !isSilent:
		next = refusing
	case alive:
		next = silent
	case c.state == fell:
		next = fell
	case c.state == answering || c.state == silent:
		next = fell
		c.fell = now
		s.fallen = append(s.fallen, fallenContact{c, now})
	}
	s.move(c, of, next)
}

// Forget takes a member out: it is not asked any more, or not for this service.
func (s *Suspicion) Forget(c *Contact) { s.move(c, nil, unknown) }

func (s *Suspicion) move(c *Contact, of *Reach, next contact) {
	if c.of == of && c.state == next {
		return
	}
	s.count(c, -1)
	c.of, c.state = of, next
	s.count(c, 1)
}

// count counts a contact in or out.
func (s *Suspicion) count(c *Contact, by int) {
	if c.of == nil || c.state == unknown {
		return
	}
	s.total(c.of, -1)
	if c.state == silent || c.state == fell {
		c.of.lost += by
	} else {
		c.of.reached += by
	}
	s.total(c.of, 1)
}

func (s *Suspicion) total(r *Reach, by int) {
	if r.news() {
		s.news += by
	}
	if r.isLost() {
		s.lost += by
	}
}

// Decide is how far to trust verdicts now.
func (s *Suspicion) Decide(now time.Time) Phase {
	for len(s.fallen) > 0 && now.Sub(s.fallen[0].at) >= LostWindow {
		if c := s.fallen[0]; c.state == fell && c.fell.Equal(c.at) {
			s.move(c.Contact, c.of, unknown)
		}
		s.fallen = s.fallen[1:]
	}
	switch {
	case s.lost < suspectServices || s.lost*100 < suspectShare*s.news:
		s.since, s.phase = time.Time{}, Trusting
	case s.since.IsZero():
		s.since, s.phase = now, Holding
	}
	if s.phase == Holding && now.Sub(s.since) >= s.Grace {
		s.phase = Conceding
	}
	return s.phase
}

// Phase is what Decide said last.
func (s *Suspicion) Phase() Phase { return s.phase }

// Since is when the suspicion began; zero when there is none.
func (s *Suspicion) Since() time.Time { return s.since }

// Due is when Decide may say something else without anything being heard before; zero: never.
func (s *Suspicion) Due() time.Time {
	if s.phase == Trusting {
		return time.Time{}
	}
	var due time.Time
	if s.phase == Holding {
		due = s.since.Add(s.Grace)
	}
	if len(s.fallen) > 0 {
		if end := s.fallen[0].at.Add(LostWindow); due.IsZero() || end.Before(due) {
			due = end
		}
	}
	return due
}

// Held tells whether a member that fell silent keeps its last verdict in a phase, by what others say of it: nothing, that it is
// alive, or that it is dead.
func (p Phase) Held(othersAlive, othersDead bool) bool {
	switch p {
	case Holding:
		return !othersDead
	case Conceding:
		return othersAlive
	}
	return false
}

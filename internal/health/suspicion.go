package health

import "time"

// Thresholds for isolation.
const (
	// suspectServices is the least number of services that must be lost. suspectShare is the least
	// share of lost services, in percent, among those with members in contact or lost.
	suspectServices = 3
	suspectShare    = 50
	// lostShare is the share of a service's members, in percent, that must be lost for the service
	// to be lost.
	lostShare = 95
	// LostWindow is how long a member counts as lost after its verdict changed, so that services
	// that die one after the other do not add up to isolation.
	LostWindow = 5 * time.Second
	// DefaultGrace is how long failing verdicts are held.
	DefaultGrace = 10 * time.Second
)

// Phase is how far a machine trusts its own probes.
type Phase uint8

const (
	// Trusting: verdicts count.
	Trusting Phase = iota
	// Holding: the machine considers itself isolated. Silent members keep their last verdict,
	// except those that others report dead.
	Holding
	// Conceding: the machine still considers itself isolated, but the grace period is over. Silent
	// members fall, except those that others report alive.
	Conceding
)

// Suspicion decides whether a machine that probes is itself isolated: it suddenly gets no reply
// from nearly all members of many services that answered just before. A refusal or a bad reply
// shows that the path works. The cost of recording a result does not depend on the number of
// members. The zero value detects isolation but holds no verdicts.
type Suspicion struct {
	// Grace is how long failing verdicts are held during isolation.
	Grace time.Duration
	// news is the number of services that have members in contact or lost, lost the number of lost
	// services.
	news, lost int
	// fallen are contacts with the times at which they fell, in order. Some may have come back.
	fallen []fallenContact
	// since is when isolation began; zero: there is none.
	since time.Time
	phase Phase
}

// Reach counts the members of a service that a machine reaches and those it lost. The zero value
// has no members.
type Reach struct{ reached, lost int }

func (r *Reach) news() bool   { return r.reached+r.lost > 0 }
func (r *Reach) isLost() bool { return r.lost > 0 && r.lost*100 >= lostShare*(r.reached+r.lost) }

// contact is the state of the path to a member by its last results.
type contact uint8

const (
	// unknown: no result, or the member was dead before it became silent.
	unknown contact = iota
	// refusing: it replies, and its verdict is dead.
	refusing
	// answering: it replies, and it is alive.
	answering
	// silent: it does not reply, and it is alive.
	silent
	// fell: it does not reply, and its verdict is dead because of that.
	fell
)

// Contact is the machine's contact to a member of a service. The zero value is a member without
// results.
type Contact struct {
	of    *Reach
	state contact
	fell  time.Time
}

type fallenContact struct {
	*Contact
	at time.Time
}

// Fell reports whether the verdict became dead because of silence, at most LostWindow before the
// last Decide.
func (c *Contact) Fell() bool { return c.state == fell }

// Heard records the latest result for a member of a service: whether it is silence, and whether the
// member is alive by the machine's own verdict, which may be held.
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

// Forget removes a member that is no longer probed, or no longer for this service.
func (s *Suspicion) Forget(c *Contact) { s.move(c, nil, unknown) }

func (s *Suspicion) move(c *Contact, of *Reach, next contact) {
	if c.of == of && c.state == next {
		return
	}
	s.count(c, -1)
	c.of, c.state = of, next
	s.count(c, 1)
}

// count adds or removes a contact, by the sign of by.
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

// Decide updates and returns the phase.
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

// Phase returns the result of the last Decide.
func (s *Suspicion) Phase() Phase { return s.phase }

// Since returns when isolation began; zero: there is none.
func (s *Suspicion) Since() time.Time { return s.since }

// Due returns when Decide may return another phase without new results; zero: never.
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

// Held reports whether a silent member keeps its last verdict in a phase, if other machines report
// it alive, dead, or neither.
func (p Phase) Held(othersAlive, othersDead bool) bool {
	switch p {
	case Holding:
		return !othersDead
	case Conceding:
		return othersAlive
	}
	return false
}

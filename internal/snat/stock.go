package snat

import (
	"slices"
	"time"
)

// StockRules are what a host goes by.
type StockRules struct {
	// Idle is how long a range must be unused until it is given back; Keep is how many are kept all the same. Soon takes the place of Idle for
	// ranges that the manager needs: at least twice the time between two looks at which ranges were used.
	Idle, Soon time.Duration
	Keep       int
	// Patience is how long an answer may take until everything is asked for afresh. Again is the least time from a refusal to the
	// next ask, which comes only if ports get scarce again. A DIP without any range asks by itself: after Again, then after twice as
	// long each time, up to AgainMost.
	Patience, Again, AgainMost time.Duration
}

// DefaultStockRules: idle ranges go back after 4 minutes (design section 9.9).
var DefaultStockRules = StockRules{Idle: 4 * time.Minute, Soon: 20 * time.Second, Keep: 2, Patience: time.Second, Again: time.Second, AgainMost: 32 * time.Second}

// Stock is the ranges of one DIP at its host, and what is to be said to the manager of them.
type Stock struct {
	rules StockRules
	// idleFor replaces rules.Idle when it is not 0.
	idleFor time.Duration
	ranges  map[Range]*held
	// known: the manager has said what the DIP holds since the host began to ask.
	known bool
	// low: more is needed; sync: everything is to be asked for afresh.
	low, sync bool
	// asked is when the ask that is not answered was sent; zero: there is none. notBefore is when the next one may be.
	asked, notBefore time.Time
	// again is the time from the last refusal to the next ask without need; 0: the last ask was not refused. refused is when it was.
	again   time.Duration
	refused time.Time
	// epoch and floor are the newest of what was taken, or of all that there is: an older grant is void.
	epoch, floor int64
	changed      bool
	refusal      Reason
}

type held struct {
	used    time.Time
	leaving bool
	// soon: the manager needs it, and it goes back after Soon without use.
	soon bool
	// returned is when it was said to the manager that it is given back; zero: it was not.
	returned time.Time
}

// NewStock makes the stock of a DIP of which it is not known what it holds.
func NewStock(rules StockRules) *Stock {
	return &Stock{rules: rules, ranges: map[Range]*held{}, sync: true}
}

// SetIdle changes how long a range must be unused until it is given back; 0: as long as the rules say.
func (s *Stock) SetIdle(idle time.Duration) {
	if s.idleFor != idle {
		s.idleFor, s.changed = idle, true
	}
}

// idleTime is how long a range must be unused until it is given back.
func (s *Stock) idleTime(h *held) time.Duration {
	idle := s.rules.Idle
	if s.idleFor > 0 {
		idle = s.idleFor
	}
	if h.soon {
		return min(idle, s.rules.Soon)
	}
	return idle
}

// shrink has all but the ranges that were used last leave.
func (s *Stock) shrink(keep int) {
	usable, _ := s.Usable()
	slices.SortStableFunc(usable, func(a, b Range) int { return s.ranges[b].used.Compare(s.ranges[a].used) })
	for _, r := range usable[min(keep, len(usable)):] {
		s.ranges[r].leaving, s.ranges[r].soon = true, true
	}
}

// reclaim has ranges that are unused go back soon.
func (s *Stock) reclaim(now time.Time) {
	for _, h := range s.ranges {
		h.soon = h.soon || now.Sub(h.used) >= s.rules.Soon
	}
}

// Said is what a host says to the manager of one DIP. At most one of Ask and Sync is set.
type Said struct {
	// Ask is for more ranges.
	Ask bool
	// Sync asks for everything; Held is what the host believes that the DIP has.
	Sync   bool
	Held   []Range
	Return []Range
}

// Usable are the ranges that new connections may use, ordered; leaving those of which only present connections may.
func (s *Stock) Usable() (usable, leaving []Range) {
	for r, h := range s.ranges {
		switch {
		case !h.returned.IsZero():
		case h.leaving:
			leaving = append(leaving, r)
		default:
			usable = append(usable, r)
		}
	}
	slices.Sort(usable)
	slices.Sort(leaving)
	return usable, leaving
}

// Changed tells whether Usable may say something else than at the last call.
func (s *Stock) Changed() bool {
	c := s.changed
	s.changed = false
	return c
}

// Known tells whether the manager has said what the DIP has.
func (s *Stock) Known() bool { return s.known }

// Refusal is why the last ask was refused; 0: it was not.
func (s *Stock) Refusal() Reason { return s.refusal }

// Low reports that ports got scarce: more ranges are needed soon.
func (s *Stock) Low() {
	s.low = true
	if at := s.refused.Add(s.rules.Again); s.again > 0 && at.Before(s.notBefore) {
		s.notBefore = at
	}
}

// Used says when a range was used last; busy: it still is.
func (s *Stock) Used(r Range, at time.Time) {
	if h := s.ranges[r]; h != nil && at.After(h.used) {
		h.used, h.soon = at, h.soon && h.leaving
	}
}

// Has tells whether the DIP has the range, leaving ones and those that are about to be given back included.
func (s *Stock) Has(r Range) bool { return s.ranges[r] != nil }

// Keep takes back that a range is to be given back, of which the manager has not heard: it is used.
func (s *Stock) Keep(r Range, now time.Time) {
	if h := s.ranges[r]; h != nil {
		h.returned, h.used, s.changed = time.Time{}, now, true
	}
}

// Afresh makes the host ask for everything: answers may be lost.
func (s *Stock) Afresh() { s.sync, s.asked, s.notBefore = true, time.Time{}, time.Time{} }

// Hear takes in an answer of an epoch.
func (s *Stock) Hear(a Answer, epoch int64, now time.Time) {
	if epoch < s.epoch {
		return
	}
	if epoch > s.epoch {
		s.epoch, s.floor = epoch, 0
	}
	switch a.Kind {
	case Granted:
		if s.asked = (time.Time{}); a.Revision < s.floor || !s.known {
			s.sync = true
			return
		}
		s.low, s.refusal, s.again = false, 0, 0
		s.take(a.Ranges, now)
	case All:
		s.asked = time.Time{}
		if a.Revision < s.floor {
			s.sync = true
			return
		}
		s.floor, s.known = a.Revision, true
		for r := range s.ranges {
			if !slices.Contains(a.Ranges, r) {
				delete(s.ranges, r)
			}
		}
		s.take(a.Ranges, now)
	case Taken:
		s.floor = max(s.floor, a.Revision)
		for _, r := range a.Ranges {
			delete(s.ranges, r)
		}
	case Leave:
		for _, r := range a.Ranges {
			if h := s.ranges[r]; h != nil {
				h.leaving = true
			}
		}
	case Shrink:
		s.shrink(a.Keep)
	case Reclaim:
		s.reclaim(now)
	case Refused:
		// What needs ports reports it again: a DIP whose connections have ended asks no more.
		s.asked, s.refusal, s.low = time.Time{}, a.Reason, false
		s.again = min(max(2*s.again, s.rules.Again), max(s.rules.AgainMost, s.rules.Again))
		s.refused, s.notBefore = now, now.Add(s.again)
	}
	s.changed = true
}

func (s *Stock) take(ranges []Range, now time.Time) {
	for _, r := range ranges {
		if s.ranges[r] == nil {
			s.ranges[r] = &held{used: now}
		}
	}
}

// Tick is what is to be said at a time; false: nothing. What it returns counts as said.
func (s *Stock) Tick(now time.Time) (Said, bool) {
	var out Said
	if !s.asked.IsZero() && now.Sub(s.asked) >= s.rules.Patience {
		s.asked, s.sync = time.Time{}, true
	}
	if s.asked.IsZero() && !now.Before(s.notBefore) {
		switch {
		case s.sync:
			out.Sync, s.sync, s.asked = true, false, now
			for r, h := range s.ranges {
				if h.returned.IsZero() {
					out.Held = append(out.Held, r)
				}
			}
			slices.Sort(out.Held)
		case s.low || s.known && len(s.ranges) == 0:
			out.Ask, s.asked = true, now
		}
	}
	out.Return = s.idle(now)
	return out, out.Ask || out.Sync || len(out.Return) > 0
}

// idle are the ranges to give back: those that were not used for long, and again those of which the manager did not say that it has
// them.
func (s *Stock) idle(now time.Time) (out []Range) {
	if !s.known {
		return nil
	}
	kept := 0
	for _, h := range s.ranges {
		if h.returned.IsZero() && !h.leaving {
			kept++
		}
	}
	for r, h := range s.ranges {
		switch {
		case !h.returned.IsZero():
			if now.Sub(h.returned) < s.rules.Patience {
				continue
			}
		case now.Sub(h.used) < s.idleTime(h):
			continue
		case h.leaving:
		case kept <= s.rules.Keep:
			continue
		default:
			kept--
		}
		if h.returned.IsZero() {
			s.changed = true
		}
		h.returned = now
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

// Due is when Tick has something to say next, unless something is heard before; zero: never.
func (s *Stock) Due(now time.Time) (due time.Time) {
	earliest := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	switch {
	case !s.asked.IsZero():
		earliest(s.asked.Add(s.rules.Patience))
	case s.sync || s.low || s.known && len(s.ranges) == 0:
		earliest(s.notBefore)
	}
	if !s.known {
		return due
	}
	for _, h := range s.ranges {
		if h.returned.IsZero() {
			if len(s.ranges) > s.rules.Keep || h.leaving {
				earliest(h.used.Add(s.idleTime(h)))
			}
		} else {
			earliest(h.returned.Add(s.rules.Patience))
		}
	}
	return due
}

package snat

import (
	"slices"
	"time"
)

// StockRules configures a Stock.
type StockRules struct {
	// Idle is how long a range must be unused before it is returned; Keep is the number of ranges
	// that are kept anyway. Soon replaces Idle for ranges that the manager needs. It must be at
	// least twice the interval at which use is checked.
	Idle, Soon time.Duration
	Keep       int
	// Patience is how long an answer may take before all ranges are requested anew (Sync). Again is
	// the minimum time from a refusal to the next request, which is only sent if ports become
	// scarce again. A DIP without any range requests on its own: after Again, then after twice as
	// long each time, up to AgainMost.
	Patience, Again, AgainMost time.Duration
}

// DefaultStockRules return idle ranges after 4 minutes (design section 9.9).
var DefaultStockRules = StockRules{Idle: 4 * time.Minute, Soon: 20 * time.Second, Keep: 2, Patience: time.Second, Again: time.Second, AgainMost: 32 * time.Second}

// Stock is the pool of ranges of one DIP at its host, with the messages due to the manager.
type Stock struct {
	rules StockRules
	// idleFor replaces rules.Idle when it is not 0.
	idleFor time.Duration
	ranges  map[Range]*held
	// known: the manager has sent the DIP's ranges since the host started.
	known bool
	// low: more ranges are needed; sync: all ranges are to be requested anew.
	low, sync bool
	// asked is when the unanswered request was sent; zero: there is none. notBefore is the earliest
	// time of the next one.
	asked, notBefore time.Time
	// again is the time from the last refusal to the next request without need; 0: the last request
	// was not refused. refused is the time of the refusal.
	again   time.Duration
	refused time.Time
	// epoch is the newest epoch of answers. floor is the revision of the newest Taken or All answer
	// in it; an older grant is void.
	epoch, floor int64
	changed      bool
	refusal      Reason
}

type held struct {
	used    time.Time
	leaving bool
	// soon: the manager needs it, and it is returned after Soon without use.
	soon bool
	// returned is when the manager was informed that it is returned; zero: it was not.
	returned time.Time
}

// NewStock returns the host pool of a DIP whose ranges are not known yet.
func NewStock(rules StockRules) *Stock {
	return &Stock{rules: rules, ranges: map[Range]*held{}, sync: true}
}

// SetIdle sets how long a range must be unused before it is returned; 0: the time of the rules.
func (s *Stock) SetIdle(idle time.Duration) {
	if s.idleFor != idle {
		s.idleFor, s.changed = idle, true
	}
}

// idleTime returns how long a range must be unused before it is returned.
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

// shrink marks all but the most recently used ranges as leaving.
func (s *Stock) shrink(keep int) {
	usable, _ := s.Usable()
	slices.SortStableFunc(usable, func(a, b Range) int { return s.ranges[b].used.Compare(s.ranges[a].used) })
	for _, r := range usable[min(keep, len(usable)):] {
		s.ranges[r].leaving, s.ranges[r].soon = true, true
	}
}

// reclaim makes unused ranges return soon.
func (s *Stock) reclaim(now time.Time) {
	for _, h := range s.ranges {
		h.soon = h.soon || now.Sub(h.used) >= s.rules.Soon
	}
}

// Said is a message of a host to the manager about one DIP. At most one of Ask and Sync is set.
type Said struct {
	// Ask requests more ranges.
	Ask bool
	// Sync requests all ranges of the DIP; Held are those that the host believes it has.
	Sync   bool
	Held   []Range
	Return []Range
}

// Usable returns the ranges for new connections, and those that only existing connections may use
// (leaving), ordered.
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

// Changed reports whether the result of Usable may have changed since the last call.
func (s *Stock) Changed() bool {
	c := s.changed
	s.changed = false
	return c
}

// Known reports whether the manager has sent the DIP's ranges.
func (s *Stock) Known() bool { return s.known }

// Refusal returns the reason of the last refusal; 0: the last request was not refused.
func (s *Stock) Refusal() Reason { return s.refusal }

// Low reports to the pool that ports became scarce, so more ranges are needed soon.
func (s *Stock) Low() {
	s.low = true
	if at := s.refused.Add(s.rules.Again); s.again > 0 && at.Before(s.notBefore) {
		s.notBefore = at
	}
}

// Used records the last use of a range.
func (s *Stock) Used(r Range, at time.Time) {
	if h := s.ranges[r]; h != nil && at.After(h.used) {
		h.used, h.soon = at, h.soon && h.leaving
	}
}

// Has reports whether the DIP has the range, including leaving and returning ones.
func (s *Stock) Has(r Range) bool { return s.ranges[r] != nil }

// Keep cancels the return of a range that is in use and whose return the manager has not received.
func (s *Stock) Keep(r Range, now time.Time) {
	if h := s.ranges[r]; h != nil {
		h.returned, h.used, s.changed = time.Time{}, now, true
	}
}

// Afresh makes the host request all ranges, because answers may be lost.
func (s *Stock) Afresh() { s.sync, s.asked, s.notBefore = true, time.Time{}, time.Time{} }

// Hear processes an answer of an epoch.
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
		// A user that still needs ports calls Low again; a DIP whose connections have ended stops
		// requesting.
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

// Tick returns the message that is due; false: none. The pool considers it sent.
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

// idle returns the ranges to return: those unused for long, and again those whose return the
// manager has not confirmed.
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

// Due returns when the next message is due if no answer arrives; zero: never.
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

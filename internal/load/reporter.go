package load

import "time"

// Reporter selects the loads of one host to report: changed ones immediately, all others within
// RefreshEvery, or every time if the sampling interval is longer. The zero Reporter has reported
// nothing.
type Reporter struct {
	told map[Key]told
}

// told is the last reported load of a member.
type told struct {
	Load
	at time.Time
}

// Afresh makes all loads due, for a receiver without any.
func (r *Reporter) Afresh() { r.told = nil }

// Report returns those of the current loads that are due now, in their order. It forgets members
// that are not among them, because their removal is not reported.
func (r *Reporter) Report(all []Member, now time.Time) []Member {
	next := make(map[Key]told, len(all))
	var out []Member
	for _, m := range all {
		last, known := r.told[m.Key]
		if !known || m.Differs(last.Load) || now.Sub(last.at)+m.Interval() > RefreshEvery {
			out = append(out, m)
			last = told{Load: m.Load, at: now}
		}
		next[m.Key] = last
	}
	r.told = next
	return out
}

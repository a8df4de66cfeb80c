package load

import "time"

// Reporter decides what of the loads of one host is told: what changed at once, everything else within RefreshEvery, or each time when looks are
// longer apart than that. The zero Reporter has told nothing.
type Reporter struct {
	told map[Key]told
}

// told is what was told last of a member.
type told struct {
	Load
	at time.Time
}

// Afresh makes everything worth telling: whoever listens knows nothing.
func (r *Reporter) Afresh() { r.told = nil }

// Report returns those of the loads there are that are to be told now, in their order. Members that are not among them are forgotten: nobody
// needs to hear that they are gone.
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

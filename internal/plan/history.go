package plan

import (
	"slices"
	"time"
)

// recent returns the memberships of a history that have not expired. Only the leader decides this,
// by its clock, so that all nodes have the same history. The argument is not modified.
func (in *Input) recent(history []Membership) []Membership {
	for len(history) > 0 && in.forgets(&history[0]).Compare(in.Now) <= 0 {
		history = history[1:]
	}
	if len(history) == 0 {
		return nil
	}
	return history
}

// forgets returns the time at which a membership expires.
func (in *Input) forgets(m *Membership) time.Time { return m.Until.Add(in.RepairWindow) }

// remember appends a membership to a history. It keeps only the last step of a slow start, because
// all ten would push out everything else. The membership before them then counts as displaced at
// the time of the last step, because it holds the previous owner of most slots that the steps move.
// A flow is lost to this only if one step gave its slot to a member and a later one took it away
// again.
func remember(history []Membership, m Membership) []Membership {
	out := slices.Clone(history)
	if n := len(out); n > 0 && sameSlowStart(&out[n-1], &m) {
		if out[n-1] = m; n > 1 {
			out[n-2].Until = m.Until
		}
	} else {
		out = append(out, m)
	}
	out = out[max(0, len(out)-MaxHistory):]
	total := 0
	for i := len(out) - 1; i >= 0; i-- {
		if total += len(out[i].Members); total > MaxHistoryMembers {
			return out[i+1:]
		}
	}
	return out
}

// sameSlowStart reports whether two memberships are steps of one slow start: they differ only in
// the weights of growing members.
func sameSlowStart(a, b *Membership) bool {
	grows := false
	return a.RingCode == b.RingCode && a.KeyID == b.KeyID && slices.EqualFunc(a.Members, b.Members, func(x, y MemberState) bool {
		if !x.Warming.IsZero() && x.Warming.Equal(y.Warming) {
			grows = true
			x.Weight = y.Weight
		}
		return x.same(y)
	}) && grows
}

// Former returns the members in the history that are no longer members, each once, with their last
// state; ordered by the time they left, latest first. They may be the previous owners of flows.
func (s *EndpointState) Former() []MemberState {
	known := make(map[uint16]bool, len(s.Members))
	for i := range s.Members {
		known[s.Members[i].ID] = true
	}
	var out []MemberState
	for i := len(s.History) - 1; i >= 0; i-- {
		for _, m := range s.History[i].Members {
			if !known[m.ID] && m.Host.IsValid() {
				known[m.ID] = true
				out = append(out, m)
			}
		}
	}
	return out
}

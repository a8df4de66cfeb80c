package plan

import (
	"slices"
	"time"
)

// recent are the memberships of a history that are remembered still: it is the leader who decides, by its clock, and all nodes hear the
// same. The history is not modified.
func (in *Input) recent(history []Membership) []Membership {
	for len(history) > 0 && in.forgets(&history[0]).Compare(in.Now) <= 0 {
		history = history[1:]
	}
	if len(history) == 0 {
		return nil
	}
	return history
}

// forgets is when a membership is forgotten.
func (in *Input) forgets(m *Membership) time.Time { return m.Until.Add(in.RepairWindow) }

// remember adds a membership to a history. Of the steps of a slow start only the last is kept: all ten would push out everything else.
// The membership before them then counts as displaced when the last of them is, for of most slots that steps move its member was the
// owner until then. A flow is lost to this only when one step gave its slot to a member and a later one took it away again.
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

// sameSlowStart tells whether two memberships are steps of one slow start: they differ in nothing but weights of members that grow.
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

// Former are the members of a history that are no members any more, each once, as they were last; ordered by the time they left, the
// latest first. They may be former owners of flows.
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

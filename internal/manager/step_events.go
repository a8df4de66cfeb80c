package manager

import (
	"fmt"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// step is the change that a write made to the members of an endpoint.
type step struct {
	svc       *lb.Service
	key       lb.EndpointKey
	was, next []plan.MemberState
}

// stepKind is one kind of change to members, and its text in events.
type stepKind struct {
	reason, words string
	// happened compares a member's states. nil means that the member was not present before, or was
	// removed. dead means that muxes report it dead.
	happened func(was, now *plan.MemberState, dead bool) bool
}

var stepKinds = []stepKind{
	{reasonRingChanged, "dead for long, taken out of the ring", func(was, now *plan.MemberState, _ bool) bool {
		return now != nil && now.Down && (was == nil || !was.Down)
	}},
	{reasonRingChanged, "returned to the ring", func(was, now *plan.MemberState, dead bool) bool {
		return was != nil && now != nil && was.Down && !now.Down && now.Weight > 0 && !dead
	}},
	{reasonRingChanged, "in the ring again although dead, because no other is left", func(was, now *plan.MemberState, dead bool) bool {
		return was != nil && now != nil && was.Down && !now.Down && now.Weight > 0 && dead
	}},
	{reasonDrainBegan, "drain, and take no new flows any more", func(was, now *plan.MemberState, _ bool) bool {
		return was != nil && now != nil && was.Draining.IsZero() && !now.Draining.IsZero()
	}},
	{reasonDrainEnded, "drained, and left", func(was, now *plan.MemberState, _ bool) bool {
		return was != nil && now == nil && !was.Draining.IsZero()
	}},
	{reasonDrainEnded, "drain no more, and take new flows again", func(was, now *plan.MemberState, _ bool) bool {
		return was != nil && now != nil && !was.Draining.IsZero() && now.Draining.IsZero()
	}},
	{reasonSlowStartBegan, "begin with a tenth of their weight", func(was, now *plan.MemberState, _ bool) bool {
		return now != nil && !now.Warming.IsZero() && (was == nil || now.Warming.After(was.Warming))
	}},
	{reasonSlowStartEnded, "have their whole weight", func(was, now *plan.MemberState, _ bool) bool {
		return was != nil && now != nil && !was.Warming.IsZero() && now.Warming.IsZero() && now.Weight > 0
	}},
}

// stepped records the events of stored steps. Only the manager that stores the steps records their
// events, so no two leaders record the same. If it dies immediately afterwards, the events are
// lost.
func (m *Manager) stepped(steps []step, revision int64) {
	for i := range steps {
		s := &steps[i]
		was, now, heard := membersByBackend(s.was), membersByBackend(s.next), m.opinions.heard(s.key)
		for _, kind := range stepKinds {
			set := map[lb.BackendKey]bool{}
			for b := range now {
				if kind.happened(was[b], now[b], heard(now[b].ID).Health == plan.HeardDead) {
					set[b] = true
				}
			}
			for b := range was {
				if now[b] == nil && kind.happened(was[b], nil, false) {
					set[b] = true
				}
			}
			if len(set) == 0 {
				continue
			}
			m.event(&apiv1.Event{
				Kind: string(lb.KindService), Name: s.svc.Name, Tenant: s.svc.Tenant, Reason: kind.reason, Count: uint32(len(set)), Revision: revision,
				Message: fmt.Sprintf("%s: %s: %s", endpointText(s.key), kind.words, names(set)),
			})
		}
	}
}

func membersByBackend(members []plan.MemberState) map[lb.BackendKey]*plan.MemberState {
	out := make(map[lb.BackendKey]*plan.MemberState, len(members))
	for i := range members {
		out[members[i].Backend] = &members[i]
	}
	return out
}

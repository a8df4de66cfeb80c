package mux

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
)

// Health implements agent.Handler.
func (a *Agent) Health(q *apiv1.HealthQuestion) *apiv1.HealthResult {
	if !q.GetShares() {
		return agent.HealthTold(q, a.healthTold)
	}
	known := map[lb.EndpointKey]map[uint16]float64{}
	return agent.HealthTold(q, func(key lb.EndpointKey, id uint16) *apiv1.NodeHealth {
		if known[key] == nil {
			known[key] = a.Shares(key)
		}
		out := &apiv1.NodeHealth{}
		if share, has := known[key][id]; has {
			out.Share = &share
		}
		return out
	})
}

// healthTold returns the health of a member in the API's form; empty for a member that is in no
// plan.
func (a *Agent) healthTold(key lb.EndpointKey, id uint16) *apiv1.NodeHealth {
	h, known := a.HealthOf(key, id)
	if !known {
		return &apiv1.NodeHealth{}
	}
	out := &apiv1.NodeHealth{Verdict: h.verdict(), Words: h.Words}
	if l, age, known := a.loads.told(load.Key{Endpoint: key, Member: id}, a.o.Clock.Now()); known {
		out.Load = convert.ToMemberLoad(l, age)
	}
	if n := len(h.Turns); n > 0 {
		out.Since = timestamppb.New(h.Turns[n-1].At)
	}
	var states []agent.CheckState
	for i, c := range a.checksOf(key) {
		if i < len(h.Checks) && h.Checks[i].Probed {
			states = append(states, agent.CheckState{Check: c, Number: i, Alive: h.Checks[i].Alive})
		}
	}
	out.Checks = agent.ChecksTold(states, h.Results)
	return out
}

// verdict returns the API's name of the verdict.
func (h *MemberHealth) verdict() string {
	switch {
	case !h.Asked:
		return convert.Unknown
	case h.Held:
		return convert.Held
	case !h.DampedUntil.IsZero():
		return convert.Damped
	case h.Alive:
		return convert.Healthy
	}
	return convert.Unhealthy
}

// since returns the time of the member's last health transition; nil: there was none.
func (m *member) since() *timestamppb.Timestamp {
	turn, known := m.history.LastTurn()
	if !known {
		return nil
	}
	return timestamppb.New(turn.At)
}

// checksOf returns the checks of an endpoint of the plan.
func (a *Agent) checksOf(e lb.EndpointKey) []lb.Check {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.roster.groups[e]; g != nil {
		return g.Health.Checks
	}
	return nil
}

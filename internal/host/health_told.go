package host

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// Health implements agent.Handler.
func (a *Agent) Health(q *apiv1.HealthQuestion) *apiv1.HealthResult {
	return agent.HealthTold(q, a.healthTold)
}

// healthTold returns the health of a member; empty if it is not checked here.
func (a *Agent) healthTold(key lb.EndpointKey, id uint16) *apiv1.NodeHealth {
	out := a.checks.health(memberRef{key, id})
	h, known := a.HealthOf(key, id)
	if !known {
		return out
	}
	states := make([]agent.CheckState, len(h.Checks))
	for i, c := range h.Checks {
		states[i] = agent.CheckState{Check: c.Check, Number: i, Alive: c.Alive}
	}
	out.Checks = agent.ChecksTold(states, h.Results)
	return out
}

// health returns the verdict on a member; empty if it is not checked here.
func (c *checks) health(ref memberRef) *apiv1.NodeHealth {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[ref]
	if m == nil {
		return &apiv1.NodeHealth{}
	}
	out := &apiv1.NodeHealth{Words: m.words}
	switch {
	case c.held[ref]:
		out.Verdict = convert.Damped
	case m.said == unsaid:
		out.Verdict = convert.Unknown
	case m.said == saidAlive:
		out.Verdict = convert.Healthy
	default:
		out.Verdict = convert.Unhealthy
	}
	if turn, known := m.past.LastTurn(); known {
		out.Since = timestamppb.New(turn.At)
	}
	return out
}

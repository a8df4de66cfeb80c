package agent

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// HealthTold answers a request for the health of members with the results of calls of of.
func HealthTold(q *apiv1.HealthQuestion, of func(lb.EndpointKey, uint16) *apiv1.NodeHealth) *apiv1.HealthResult {
	out := &apiv1.HealthResult{}
	for _, asked := range q.GetMembers() {
		key, id, err := convert.EndpointMemberOf(asked)
		if err != nil {
			out.Members = append(out.Members, &apiv1.NodeHealth{Error: err.Error()})
			continue
		}
		out.Members = append(out.Members, of(key, id))
	}
	return out
}

// CheckState is a check that a node makes of a member, and its state.
type CheckState struct {
	Check lb.Check
	// Number is its index among the checks of the endpoint.
	Number int
	Alive  bool
}

// ChecksTold returns the health of a member's checks from their states and past results.
func ChecksTold(states []CheckState, past []health.Past) []*apiv1.CheckHealth {
	var out []*apiv1.CheckHealth
	byNumber := map[int]*apiv1.CheckHealth{}
	for i := range states {
		s := &states[i]
		c := &apiv1.CheckHealth{Check: checkWords(&s.Check), Alive: s.Alive, Rise: s.Check.Rise, Fall: s.Check.Fall}
		if len(states) > 1 {
			c.Check = fmt.Sprintf("check %d, %s", s.Number+1, c.Check)
		}
		out, byNumber[s.Number] = append(out, c), c
	}
	for _, p := range past {
		c := byNumber[int(p.Check)]
		if c == nil {
			continue // of a check that was removed
		}
		c.Results = append(c.Results, &apiv1.ProbeResult{
			Time: timestamppb.New(p.At), Took: durationpb.New(p.Took), Good: p.Good, Void: p.Void, Words: p.Words,
		})
		switch {
		case p.Void:
		case p.Good:
			c.Good, c.Bad = c.Good+1, 0
		default:
			c.Good, c.Bad = 0, c.Bad+1
		}
	}
	return out
}

// checkWords returns a short description of a check. If there are several checks, their numbers
// distinguish those with the same description.
func checkWords(c *lb.Check) string {
	words := []string{c.KindText()}
	if c.Kind == lb.CheckGRPC && c.TLS {
		words = append(words, "over TLS")
	}
	for _, w := range []string{c.Path, c.Service, c.Name, c.Program} {
		if w != "" {
			words = append(words, w)
		}
	}
	if c.Address.IsValid() {
		words = append(words, "at "+c.Address.String())
	}
	if c.Port != 0 {
		words = append(words, fmt.Sprintf("port %d", c.Port))
	}
	if c.Through == lb.ThroughTunnel {
		words = append(words, "through tunnel")
	}
	return strings.Join(words, " ")
}

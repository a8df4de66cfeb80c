package host

import (
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestHealthIsTold checks that the answer has the verdict and the results of each check for members
// that this host checks, and nothing for others.
func TestHealthIsTold(t *testing.T) {
	w := newTester(t)
	b := checkedBy(binding("203.0.113.10", "10.20.1.11"), lb.FromHost)
	muxes := binding("203.0.113.11", "10.20.1.12")
	w.plan(b, muxes)
	ask := func() []*apiv1.NodeHealth {
		return w.Health(&apiv1.HealthQuestion{Members: []*apiv1.EndpointMember{
			convert.ToEndpointMember(muxes.Key, muxes.Member), convert.ToEndpointMember(b.Key, b.Member), {Vip: "web"},
		}}).GetMembers()
	}
	if got := ask(); len(got) != 3 || got[0].String() != "" || got[1].Verdict != "unknown" || got[2].Error == "" {
		t.Fatalf("at first: %v", got)
	}
	w.probe(true)
	w.probe(false)
	h := ask()[1]
	if h.Verdict != "healthy" || h.Words != "drawn" || h.Since == nil || len(h.Checks) != 1 {
		t.Fatalf("told %v", h)
	}
	if c := h.Checks[0]; c.Check != "tcp" || !c.Alive || c.Bad != 1 || c.Rise != 2 || c.Fall != 3 || len(c.Results) != 2 || !c.Results[0].Good || c.Results[1].Good {
		t.Errorf("told %v", c)
	}
}

package mux

import (
	"fmt"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
)

// TestHealthIsTold: the result has, for the requested members in their order, the verdict with its
// reason and each result of each check. It is empty for a member that does not exist.
func TestHealthIsTold(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	w.probe("10.20.1.11", true, "status 200")
	for range 3 {
		w.probe("10.20.1.11", false, "connection refused")
	}
	key := w.tables.state.Endpoints[0].Key
	got := w.agent.Health(&apiv1.HealthQuestion{Members: []*apiv1.EndpointMember{
		convert.ToEndpointMember(key, 2), convert.ToEndpointMember(key, 1), convert.ToEndpointMember(key, 9), {Vip: "web"},
	}}).GetMembers()
	if len(got) != 4 || got[0].Verdict != "unknown" || got[0].Since != nil || got[2].String() != "" || got[3].Error == "" {
		t.Fatalf("told %v", got)
	}
	h := got[1]
	if h.Verdict != "unhealthy" || h.Words != "connection refused" || h.Since == nil || len(h.Checks) != 1 {
		t.Fatalf("of the one that was asked: %v", h)
	}
	text := fmt.Sprint(h.Checks[0].Good, h.Checks[0].Bad, h.Checks[0].Alive)
	for _, r := range h.Checks[0].Results {
		text += fmt.Sprintf("; %v %s", r.Good, r.Words)
	}
	if want := "0 3 false; true status 200; false connection refused; false connection refused; false connection refused"; text != want {
		t.Errorf("told %s, want %s", text, want)
	}
	for _, m := range w.agent.Status().GetMembers() {
		if turned := m.GetMember() == 1; (m.GetSince() != nil) != turned || m.GetDamped() || m.GetHeld() {
			t.Errorf("status has %v", m)
		}
	}
}

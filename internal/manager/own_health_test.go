package manager_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// several returns web with the given number of backends on the host, members 0 and up.
func several(host, backends int) *lb.Service {
	s := web(slices.Repeat([]int{host}, backends)...)
	for i := range s.Endpoints[0].Backends {
		s.Endpoints[0].Backends[i].DIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 20, byte(host), byte(11 + i)})}
	}
	return s
}

// TestHostsSpeakForTheirOwn: a host's verdicts on members of another host, on members that do not
// exist and on invalid endpoints reach no mux. Its own do. A mux ends its stream if it cannot parse
// hosts' reports.
func TestHostsSpeakForTheirOwn(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1, 2))
	evil, host := r.raw("host2", "host"), r.raw("host1", "host")
	receive(t, evil)
	receive(t, host)
	says := func(s *rawStream, full bool, es ...*apiv1.EndpointHealth) {
		t.Helper()
		if err := s.Send(&apiv1.NodeReport{Health: &apiv1.HealthReport{Full: full, Endpoints: es}}); err != nil {
			t.Fatal(err)
		}
	}
	of := func(vip string, alive, dead, unknown []uint32) *apiv1.EndpointHealth {
		return &apiv1.EndpointHealth{Vip: vip, Protocol: "tcp", Port: 80, Alive: alive, Dead: dead, Unknown: unknown}
	}
	says(host, true, of("203.0.113.10", []uint32{0}, nil, nil))
	mux := r.raw("mux1", "mux")
	hears := func(want func(e *apiv1.EndpointHealth) bool) {
		t.Helper()
		for {
			h := receive(t, mux).GetHealth()
			for _, e := range h.GetEndpoints() {
				if e.GetVip() != "203.0.113.10" || len(e.GetAlive())+len(e.GetDead())+len(e.GetUnknown()) > 1 && !h.GetFull() {
					t.Fatalf("the mux hears %v", h)
				}
				for _, id := range e.GetDead() {
					if id != 1 {
						t.Fatalf("the mux hears %v", h)
					}
				}
				if want(e) {
					return
				}
			}
		}
	}
	hears(func(e *apiv1.EndpointHealth) bool { return len(e.GetAlive()) == 1 && e.GetAlive()[0] == 0 })
	says(evil, true, of("no address", []uint32{1}, nil, nil), of("203.0.113.10", nil, []uint32{0, 1, 70000}, nil), of("203.0.113.99", []uint32{1}, nil, nil))
	hears(func(e *apiv1.EndpointHealth) bool { return len(e.GetDead()) == 1 })
	// Its reasons are for people, and must not deceive them.
	loud := of("203.0.113.10", nil, []uint32{1}, nil)
	loud.Words = []*apiv1.HealthWords{{Words: "gone\n\x1b[2Jmux1 says" + strings.Repeat("x", 1<<16), Members: []uint32{0, 1, 70000}}, {Words: "of nobody", Members: []uint32{0}}}
	says(evil, false, loud)
	hears(func(e *apiv1.EndpointHealth) bool {
		if len(e.GetWords()) != 1 {
			return false
		}
		w := e.GetWords()[0]
		if !slices.Equal(w.GetMembers(), []uint32{1}) || !strings.HasPrefix(w.GetWords(), `gone\n\x1b[2Jmux1 says`) || len(w.GetWords()) > health.MaxWords {
			t.Fatalf("the mux hears %v", e)
		}
		return true
	})
	// A mux that connects later receives the reasons of dead members.
	late := r.raw("mux1", "mux")
	if h := receive(t, late).GetHealth(); !h.GetFull() || len(h.GetEndpoints()) != 1 || len(h.GetEndpoints()[0].GetWords()) != 1 {
		t.Errorf("a mux that starts hears %v", h)
	}
	mux = late
	says(evil, false, of("no address", nil, nil, []uint32{1}), of("203.0.113.10", []uint32{1}, nil, []uint32{0}))
	hears(func(e *apiv1.EndpointHealth) bool { return len(e.GetAlive()) == 1 && e.GetAlive()[0] == 1 })
}

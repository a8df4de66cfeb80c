package manager

import (
	"net/netip"
	"strings"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// crowdHost is the host address of crowd's backends.
var crowdHost = netip.MustParseAddr("10.99.0.1")

// hostNode is a Node of role host with the address of crowd's backends.
func hostNode(name string) *lb.Node {
	return &lb.Node{Name: name, Role: lb.RoleHost, Addresses: []netip.Addr{crowdHost}}
}

// applied applies objects and returns the response.
func (k *kept) applied(force bool, objs ...lb.Object) (*apiv1.ApplyResponse, error) {
	req := &apiv1.ApplyRequest{Force: force}
	for _, o := range objs {
		lb.SetDefaults(o)
		req.Objects = append(req.Objects, convert.ToObject(o))
	}
	return k.m.applyAll(k.t.Context(), req)
}

// connect opens the first stream of a host.
func (k *kept) connect(host string) {
	k.streams++
	k.m.reports.connected(&session{name: host, role: lb.RoleHost, number: k.streams}, &apiv1.Hello{}, k.clock.Now())
}

func TestBackendsWithoutAgentAreReported(t *testing.T) {
	s := newScribe(t)
	agents := newAgentEvents(s.m)
	objs := crowd(1, 1, 2)
	const missing, unjoined = "no agent at 10.99.0.1: no Node of role host has the address", "no agent at 10.99.0.1: the Node with the address has not connected"
	expect := func(why string) {
		t.Helper()
		res, err := s.applied(false, objs...)
		if err != nil {
			t.Fatal(err)
		}
		if warned := strings.Join(res.GetWarnings(), "\n"); (why != "") != strings.Contains(warned, "services/s0: endpoints[0].backends[0].host: "+why) || why == "" && warned != "" {
			t.Errorf("warnings: %q, want %q", warned, why)
		}
		decided := s.m.view.decisions(s.m.reports.seen, nil)
		if (why != "") != (len(decided) == 2) {
			t.Fatalf("decisions: %v", decided)
		}
		for _, d := range decided {
			if d.GetNoAgent() != why {
				t.Errorf("%s has no agent: %q, want %q", d.GetDip(), d.GetNoAgent(), why)
			}
		}
		traced := &apiv1.TraceResult{Verdict: "forwarded", Service: "s0", Dip: "10.0.0.1", DipPort: 80, Steps: []string{"forwarded"}}
		s.m.withoutAgent(traced)
		if traced.GetNoAgent() != why || why != "" && traced.GetSteps()[len(traced.GetSteps())-1] != why {
			t.Errorf("trace: %v, want %q as the last step", traced, why)
		}
	}
	expect(missing)
	agents.round()
	s.clock.Advance(agentMissingAfter)
	agents.round()
	agents.round()
	s.write()
	s.expectEvents(eventFilter{kind: "Service"}, "Service s0 Applied", "Service s0 AgentMissing")

	if _, err := s.applied(false, hostNode("h1")); err != nil {
		t.Fatal(err)
	}
	expect(unjoined)
	s.connect("h1")
	expect("")
	agents.round()
	agents.round()
	s.write()
	s.expectEvents(eventFilter{kind: "Service"}, "Service s0 Applied", "Service s0 AgentMissing", "Service s0 AgentPresent")

	// Servers that own the VIP need none.
	plain := objs[1].(*lb.Service)
	plain.Endpoints[0].Rewrite = lb.RewriteNone
	if _, err := s.applied(false, plain); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.m.remove(t.Context(), []ref{{lb.KindNode, "h1"}}, false, false); err != nil {
		t.Errorf("delete a host of plain servers: %v", err)
	}
	expect("")
}

func TestAgentEventsOfAnEarlierLeader(t *testing.T) {
	s := newScribe(t)
	if _, err := s.applied(false, crowd(1, 1, 1)...); err != nil {
		t.Fatal(err)
	}
	agents := newAgentEvents(s.m)
	agents.round()
	s.clock.Advance(agentMissingAfter)
	agents.round()
	s.write()
	s.stop()
	s.start()
	s.begin()
	agents = newAgentEvents(s.m)
	agents.round()
	s.clock.Advance(agentMissingAfter)
	agents.round()
	if _, err := s.applied(false, hostNode("h1")); err != nil {
		t.Fatal(err)
	}
	s.connect("h1")
	agents.round()
	s.write()
	s.expectEvents(eventFilter{kind: "Service"}, "Service s0 Applied", "Service s0 AgentMissing", "Service s0 AgentPresent")
}

func TestHostsWithBackendsStay(t *testing.T) {
	k := newKept(t)
	objs := crowd(1, 1, 2)
	if _, err := k.applied(false, append(objs, hostNode("h1"))...); err != nil {
		t.Fatal(err)
	}
	const refused = "nodes/h1: must not be deleted while backends of rewrite host are on it and not drained, unless force is set: services/s0: 10.0.0.1:80, 10.0.0.2:80"
	node := []ref{{lb.KindNode, "h1"}}
	for _, dry := range []bool{true, false} {
		if _, _, err := k.m.remove(t.Context(), node, dry, false); err == nil || err.Error() != refused {
			t.Errorf("delete (dry run %t): %v, want %q", dry, err, refused)
		}
	}
	prune := &apiv1.ApplyRequest{Prune: true}
	for _, o := range objs {
		prune.Objects = append(prune.Objects, convert.ToObject(o))
	}
	if _, _, err := k.m.apply(t.Context(), prune); err == nil || err.Error() != refused {
		t.Errorf("prune: %v, want %q", err, refused)
	}
	moved := hostNode("h1")
	moved.Addresses = []netip.Addr{netip.MustParseAddr("10.99.0.9")}
	if _, err := k.applied(false, moved); err == nil || !strings.Contains(err.Error(), "must keep its role and addresses") {
		t.Errorf("another address: %v", err)
	}
	if _, _, err := k.m.remove(t.Context(), append(node, ref{lb.KindService, "s0"}), true, false); err != nil {
		t.Errorf("delete with the service: %v", err)
	}
	if _, _, err := k.m.remove(t.Context(), node, true, true); err != nil {
		t.Errorf("delete with force: %v", err)
	}
	prune.Force, prune.DryRun = true, true
	if _, _, err := k.m.apply(t.Context(), prune); err != nil {
		t.Errorf("prune with force: %v", err)
	}
	svc := objs[1].(*lb.Service)
	for i := range svc.Endpoints[0].Backends {
		svc.Endpoints[0].Backends[i].Drain = true
	}
	if _, err := k.applied(false, svc); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.m.remove(t.Context(), node, false, false); err != nil {
		t.Errorf("delete when all are drained: %v", err)
	}
}

// TestServersOfSNATWithoutAgentAreReported checks that a host that only snat names needs an agent
// like a host with backends.
func TestServersOfSNATWithoutAgentAreReported(t *testing.T) {
	s := newScribe(t)
	agents := newAgentEvents(s.m)
	dip := netip.MustParseAddr("10.0.7.1")
	out := &lb.Service{Name: "out", VIPs: []netip.Addr{netip.MustParseAddr("203.0.77.1")}, SNAT: []lb.SNATServer{{DIP: dip, Host: crowdHost}}}
	network := crowd(1, 1, 1)[0]
	res, err := s.applied(false, network, out)
	if err != nil {
		t.Fatal(err)
	}
	want := "services/out: snat[0]: no agent at 10.99.0.1: no Node of role host has the address: snat needs one, packets for 10.0.7.1 are lost until it runs"
	if got := res.GetWarnings(); len(got) != 1 || got[0] != want {
		t.Errorf("warnings %q, want %q", got, want)
	}
	agents.round()
	s.clock.Advance(agentMissingAfter)
	agents.round()
	if res, err = s.applied(false, hostNode("h1")); err != nil || len(res.GetWarnings()) != 0 {
		t.Fatalf("%v, %v", res, err)
	}
	s.connect("h1")
	agents.round()
	s.write()
	s.expectEvents(eventFilter{kind: "Service"}, "Service out Applied", "Service out AgentMissing", "Service out AgentPresent")
	if _, _, err := s.m.remove(t.Context(), []ref{{lb.KindNode, "h1"}}, false, false); err == nil || !strings.Contains(err.Error(), "services/out: 10.0.7.1") {
		t.Errorf("the host is deleted: %v", err)
	}
}

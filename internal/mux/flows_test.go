package mux

import (
	"reflect"
	"slices"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

func TestFlowsNameBackends(t *testing.T) {
	w := newWorld(t)
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	port := lb.PortsText(w.tables.state.Endpoints[0].Key.Port, 0)
	got := w.agent.Flows(t.Context(), &apiv1.FlowsRequest{Vip: "203.0.113.10", Port: port, Limit: 1})
	if got.Error != "" || !got.Truncated || len(got.Flows) != 1 {
		t.Fatalf("flows: %v", got)
	}
	if f := got.Flows[0]; f.Dip != "10.20.1.11" || f.Member != 1 || f.Class != "trusted" || f.Port != port {
		t.Errorf("flow: %v", f)
	}
	if got := w.agent.Flows(t.Context(), &apiv1.FlowsRequest{Vip: "203.0.113.10", Limit: 9}); got.Error != "" || got.Truncated || len(got.Flows) != 2 {
		t.Errorf("flows of the whole VIP: %v", got)
	}
	for name, q := range map[string]*apiv1.FlowsRequest{
		"another VIP":  {Vip: "203.0.113.11", Limit: 9},
		"another port": {Vip: "203.0.113.10", Port: "*", Limit: 9},
		"no address":   {Vip: "web", Limit: 9},
	} {
		if got := w.agent.Flows(t.Context(), q); got.Error == "" {
			t.Errorf("%s: %v, want an error", name, got)
		}
	}
}

// TestFlowClasses: connection records and flow table entries have different class names.
func TestFlowClasses(t *testing.T) {
	for want, f := range map[string]dataplane.Flow{
		"untrusted": {Class: dataplane.FlowUntrusted}, "trusted": {Class: dataplane.FlowTrusted}, "closing": {Class: dataplane.FlowClosing},
		"source": {Class: dataplane.FlowTrusted, Source: true},
		"new":    {Class: dataplane.FlowUntrusted, Tracked: true}, "open": {Class: dataplane.FlowTrusted, Tracked: true},
		"closed": {Class: dataplane.FlowClosing, Tracked: true},
	} {
		if got := flowClass(f); got != want {
			t.Errorf("%+v: %s, want %s", f, got, want)
		}
	}
}

func TestFlowsOfTheEndpointThatTakesAPort(t *testing.T) {
	endpoint := func(protocol lb.Protocol, port, end uint16) plan.Endpoint {
		return plan.Endpoint{Key: lb.EndpointKey{Protocol: protocol, Port: port, PortEnd: end}}
	}
	endpoints := []plan.Endpoint{
		endpoint(lb.TCP, 80, 0), endpoint(lb.UDP, 8000, 8100), endpoint(lb.TCP, 0, lb.AllPorts), endpoint(lb.AnyProtocol, 0, lb.AllPorts),
	}
	for _, test := range []struct {
		port, protocol string
		want           []int
	}{
		{"", "", []int{0, 1, 2, 3}}, {"", "tcp", []int{0, 2}}, {"80", "", []int{0}}, {"8000-8100", "", []int{1}}, {"8000-8101", "", nil},
		{"8050", "", []int{1, 2, 3}}, {"8050", "udp", []int{1}}, {"81", "udp", nil}, {"*", "", []int{2, 3}}, {"7", "any", []int{3}},
	} {
		var want []plan.Endpoint
		for _, i := range test.want {
			want = append(want, endpoints[i])
		}
		got := asked(&apiv1.FlowsRequest{Port: test.port, Protocol: test.protocol}, slices.Clone(endpoints))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("port %q, protocol %q: %v, want %v", test.port, test.protocol, got, want)
		}
	}
}

func TestPortText(t *testing.T) {
	for want, k := range map[string]lb.EndpointKey{"80": {Port: 80}, "8000-8100": {Port: 8000, PortEnd: 8100}, "*": {PortEnd: 65535}} {
		if got := lb.PortsText(k.Port, k.PortEnd); got != want {
			t.Errorf("%+v: %q, want %q", k, got, want)
		}
	}
}

// TestTraceTellsDecisions: the agent's health decisions follow the step that found the endpoint.
func TestTraceTellsDecisions(t *testing.T) {
	w := newWorld(t)
	w.apply(openPlan("10.20.1.11"))
	q := &apiv1.TraceRequest{Client: "198.51.100.11", ClientPort: 40000, Vip: "203.0.113.10", Port: 80, Protocol: "tcp", Segment: "ack"}
	if got := w.agent.Trace(q); got.Error != "" || len(got.Steps) != 2 {
		t.Errorf("before anything was decided: %v", got)
	}
	w.probe("10.20.1.11", false, "connection refused")
	got := w.agent.Trace(q)
	const want = "no member is healthy: it fails open, and all of them count as alive"
	if len(got.Steps) != 3 || got.Steps[0] != "endpoint found" || got.Steps[1] != want || got.Service != "web" {
		t.Errorf("got %v, want %s as the second step", got, want)
	}
	q.Segment = "urg"
	if got := w.agent.Trace(q); got.Error != `trace: segment: "urg": must be syn, ack, fin or rst` {
		t.Errorf("unknown segment: %v", got)
	}
}

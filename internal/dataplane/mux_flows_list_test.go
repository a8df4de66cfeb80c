package dataplane

import (
	"context"
	"errors"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// listFlows lists the flows of one endpoint.
func (m *Mux) listFlows(key lb.EndpointKey, most int) ([]Flow, error) {
	flows, err := m.Flows(context.Background(), []lb.EndpointKey{key}, most)
	if err != nil {
		return nil, err
	}
	return flows[0], nil
}

// TestFlowsOfEndpoints lists the flows of several endpoints in one walk, each under its endpoint, at most as many as asked for in all, and stops when
// its caller has gone.
func TestFlowsOfEndpoints(t *testing.T) {
	f := newMuxFixture(t)
	must(t, f.mux.Apply(planOf(flowEndpointOf(80, 3), flowEndpointOf(81, 3), flowEndpointOf(82, 3))))
	settle(t, f.mux)
	must(t, f.mux.SetNextHops(hopsTo(planOf(flowEndpointOf(80, 20)))))
	for port := range uint16(20) {
		f.run(tcpSegment(80, 1000+port, wire.SYN).Frame())
		if port < 7 {
			f.run(tcpSegment(82, 1000+port, wire.SYN).Frame())
		}
	}
	keys := []lb.EndpointKey{flowEndpointOf(82, 1).Key, flowEndpointOf(81, 1).Key, flowEndpointOf(80, 1).Key}
	got, err := f.mux.Flows(t.Context(), keys, 100)
	must(t, err)
	if len(got) != 3 || len(got[0]) != 7 || len(got[1]) != 0 || len(got[2]) != 20 {
		t.Errorf("flows of ports 82, 81 and 80 are %v, want 7, 0 and 20", got)
	}
	few, err := f.mux.Flows(t.Context(), keys, 5)
	must(t, err)
	if n := len(few[0]) + len(few[1]) + len(few[2]); n != 5 {
		t.Errorf("a list of at most 5 has %d flows", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.mux.Flows(ctx, keys, 100); !errors.Is(err, context.Canceled) {
		t.Errorf("a list whose caller has gone: %v, want %v", err, context.Canceled)
	}
}

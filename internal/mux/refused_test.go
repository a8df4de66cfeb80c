package mux

import (
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestStatusHasRefused: refused packets of all endpoints of a VIP are one entry; VIPs without any
// have none.
func TestStatusHasRefused(t *testing.T) {
	var endpoints []plan.Endpoint
	counters := dataplane.MuxCounters{Refused: map[lb.EndpointKey]dataplane.Counter{}}
	for i, vip := range []string{"203.0.113.11", "2001:db8:f::10", "203.0.113.11", "203.0.113.12"} {
		key := lb.EndpointKey{VIP: netip.MustParseAddr(vip), Protocol: lb.TCP, Port: uint16(80 + i)}
		endpoints = append(endpoints, plan.Endpoint{Key: key, Service: "web"})
		if i < 3 {
			counters.Refused[key] = dataplane.Counter{Packets: uint64(1 + i), Bytes: uint64(100 + i)}
		}
	}
	got := refusedStatus(endpoints, counters)
	want := []*apiv1.RefusedStatus{
		{Vip: "2001:db8:f::10", Service: "web", Packets: 2, Bytes: 101},
		{Vip: "203.0.113.11", Service: "web", Packets: 4, Bytes: 202},
	}
	if len(got) != len(want) || !proto.Equal(got[0], want[0]) || !proto.Equal(got[1], want[1]) {
		t.Errorf("got %v, want %v", got, want)
	}
}

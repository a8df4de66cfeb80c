package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// awaitRoutes waits until the router has so many next hops to an address.
func awaitRoutes(t *testing.T, to netip.Addr, hops int) {
	t.Helper()
	prefix := netip.PrefixFrom(to, to.BitLen())
	await(t, fmt.Sprintf("%d next hops to %s", hops, prefix), func(context.Context) error {
		via, err := shared.RoutesAtRouter(prefix)
		if err == nil && len(via) != hops {
			err = fmt.Errorf("next hops are %v", via)
		}
		return err
	})
}

// TestSNATWithoutManagers: muxes that hear of leases no more withdraw the VIP that has SNAT, and only that; when a manager is back they
// announce it, and connections go on. Every mux knows whose a port is.
func TestSNATWithoutManagers(t *testing.T) {
	logsOnFailure(t, shared)
	o := newOutside(t)
	vms := []string{"host2-vm1", "host3-vm1"}
	s := snatted("snat-unheard", 143, "ipip", vms)
	s.up(t)
	conns := o.dialOut(t, vms, 20)
	held, err := leases(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	if len(held) != len(vms) {
		t.Fatalf("leases of %v, want of %v", held, vms)
	}
	for dip, ports := range held {
		for _, port := range ports {
			knowsWhosePort(t, s.vips()[0], port+7, dip)
		}
	}

	muxes := shared.Topology.Muxes
	if err := shared.KillManager(t.Context(), "manager1"); err != nil {
		t.Fatal(err)
	}
	awaitRoutes(t, s.vips()[0], 0)
	awaitRoutes(t, s.vips()[1], muxes) // over IPv6 there is no SNAT
	if err := shared.StartManager("manager1"); err != nil {
		t.Fatal(err)
	}
	awaitRoutes(t, s.vips()[0], muxes)
	conns.speak(t, "after a manager came back")
	o.dialOut(t, vms, 4).speak(t, "begun after it")
}

// knowsWhosePort checks that every mux would send an answer to a port to the server that has it.
func knowsWhosePort(t *testing.T, vip netip.Addr, port uint32, dip string) {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Trace(t.Context(), connect.NewRequest(&apiv1.TraceRequest{
		Client: lab.ClientAddresses(1).V4.Addr().String(), ClientPort: 80, Vip: vip.String(), Port: port, Protocol: "tcp",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(answer.Msg.GetResults()); n != shared.Topology.Muxes {
		t.Errorf("%d muxes answered, want %d", n, shared.Topology.Muxes)
	}
	for _, r := range answer.Msg.GetResults() {
		if r.GetVerdict() != "forwarded" || r.GetDip() != dip || r.GetOuterDestination() != dip {
			t.Errorf("port %d is %s's, %s traces %v", port, dip, r.GetNode(), r)
		}
	}
}

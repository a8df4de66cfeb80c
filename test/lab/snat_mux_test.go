package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// awaitRoutes waits until the router has this many next hops to an address.
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

// awaitLonger waits until the router has `paths` paths to an address, of which `longer` are longer
// than those of muxes with the newest leases.
func awaitLonger(t *testing.T, to netip.Addr, paths, longer int) {
	t.Helper()
	prefix := netip.PrefixFrom(to, to.BitLen())
	await(t, fmt.Sprintf("%d longer paths of %d to %s", longer, paths, prefix), func(ctx context.Context) error {
		all, err := shared.PathsAtRouter(ctx, prefix)
		if err != nil {
			return err
		}
		n := 0
		for _, path := range all {
			if len(strings.Fields(path)) > 1 {
				n++
			}
		}
		if len(all) != paths || n != longer {
			err = fmt.Errorf("paths are %q", all)
		}
		return err
	})
}

// TestSNATWithoutManagers checks that without managers all muxes serve the clients of a service
// with SNAT and its servers' connections. They rank their routes behind those of a mux with newer
// leases, of which there is none. Every mux has the owner of each port.
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
	awaitLonger(t, s.vips()[0], muxes, muxes)
	awaitLonger(t, s.vips()[1], muxes, 0) // over IPv6 there is no SNAT
	awaitRoutes(t, s.vips()[0], muxes)
	conns.speak(t, "without managers")
	for _, target := range s.targets() {
		if err := shared.FirstAnswer(t.Context(), "client1", target); err != nil {
			t.Errorf("without managers: %v", err)
		}
	}
	// An agent that starts without a manager continues with the leases in the tables.
	if err := shared.KillAgent(t.Context(), "mux1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.StartAgent("mux1"); err != nil {
		t.Fatal(err)
	}
	awaitLonger(t, s.vips()[0], muxes, muxes)
	conns.speak(t, "without managers, after a restart of the agent of mux1")
	if err := shared.StartManager("manager1"); err != nil {
		t.Fatal(err)
	}
	awaitLonger(t, s.vips()[0], muxes, 0)
	awaitRoutes(t, s.vips()[0], muxes)
	conns.speak(t, "after a manager came back")
	o.dialOut(t, vms, 4).speak(t, "begun after it")
}

// TestSNATWithoutHealth checks that connections of servers continue, and begin, while no backend of
// their service is healthy.
func TestSNATWithoutHealth(t *testing.T) {
	logsOnFailure(t, shared)
	o := newOutside(t)
	vms := []string{"host1-vm1", "host2-vm1"}
	s := snatted("snat-unwell", 144, "ipip", vms)
	s.up(t)
	conns := o.dialOut(t, vms, 10)
	s.health = "{http: {path: /nope}, port: 8080, interval: 200ms, timeout: 200ms, rise: 2, fall: 2}"
	s.apply(t)
	s.awaitAlive(t, 0)
	awaitRoutes(t, s.vips()[1], 0) // over IPv6 health alone decides
	awaitRoutes(t, s.vips()[0], shared.Topology.Muxes)
	conns.speak(t, "while no backend is healthy")
	o.dialOut(t, vms, 10).speak(t, "begun while no backend is healthy")
	s.health = ""
	s.apply(t)
	s.awaitAlive(t, len(vms))
	awaitRoutes(t, s.vips()[1], shared.Topology.Muxes)
	conns.speak(t, "when they are healthy again")
}

// knowsWhosePort checks that every mux would send a reply to a port to the server that has leased
// it.
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

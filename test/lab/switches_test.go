package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/wire"
)

// switched sets the switches of the lab's Network, or removes them.
func switched(t *testing.T, prefixes ...string) {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	network := &apiv1.Network{
		Name: "lab", Vips: []string{lab.VIPs4.String(), lab.VIPs6.String()}, Mtu: uint32(shared.Topology.MTU), Switches: prefixes,
		Underlay: []string{lab.Muxes4.String(), lab.Muxes6.String(), lab.Hosts4.String(), lab.Hosts6.String()},
	}
	object := &apiv1.Object{Kind: &apiv1.Object_Network{Network: network}}
	if _, err := client.Apply(context.Background(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{object}})); err != nil {
		t.Fatal(err)
	}
}

// A switch tunnels to a host's address. The host distributes the flows over its servers, keeps each
// flow on its server, and assigns none to a server that its own checks report dead.
func TestSwitchesNameTheHost(t *testing.T) {
	logsOnFailure(t, shared)
	const source, first, flows = "10.30.0.7", 20000, 200
	switched(t, "10.30.0.0/24")
	t.Cleanup(func() { switched(t) })
	s := service{name: "switched", number: 131, protocol: "udp", port: 5007, dipPort: 7, only4: true, backends: []string{"host1-vm1", "host1-vm2", "host2-vm1"},
		health: "{http: {path: /healthz}, port: 8080, from: host, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}"}
	s.up(t)
	vip, host := s.vips()[0], lab.HostAddresses(1).V4.Addr()
	client := listen(t, "client1", lab.Uplink)
	vms := []*frames{listen(t, "host1-vm1", lab.Uplink), listen(t, "host1-vm2", lab.Uplink)}
	send := func(port int, word string) {
		inner := wire.Packet{Src: lab.ClientAddresses(1).V4.Addr(), Dst: vip, Payload: wire.UDP{SrcPort: uint16(port), DstPort: 5007, Data: []byte(word)}}
		outer := wire.Packet{Src: netip.MustParseAddr(source), Dst: host, Payload: wire.Raw{Number: wire.ProtoIPIP, Data: inner.IP()}}
		copy(outer.SrcMAC[:], hardwareAddress(t, "router1", "host1"))
		copy(outer.DstMAC[:], hardwareAddress(t, "host1", lab.Uplink))
		sendFrame(t, "router1", "host1", outer.Frame())
	}
	// has reports whether a datagram with this text was captured.
	has := func(f *frames, out bool, word string) bool {
		return len(f.those(func(f frame) bool { return f.out == out && bytes.HasSuffix(f.data, []byte(word)) })) > 0
	}
	// ask sends a text over each of n flows until all echoes came, and returns the server of host1
	// that received each.
	ask := func(from, n int, word string) map[int]int {
		t.Helper()
		at := map[int]int{}
		await(t, "echoes of "+word, func(context.Context) error {
			for port := from; port < from+n; port++ {
				said := fmt.Sprintf("%s over %d.", word, port)
				if _, known := at[port]; known {
					continue
				}
				if !has(client, false, said) {
					send(port, said)
					continue
				}
				for vm, f := range vms {
					if has(f, false, said) {
						at[port] = vm
					}
				}
			}
			if len(at) < n {
				return fmt.Errorf("%d of %d came", len(at), n)
			}
			return nil
		})
		return at
	}
	before := ask(first, flows, "hello")
	count := [2]int{}
	for _, vm := range before {
		count[vm]++
	}
	if count[0] < flows/4 || count[1] < flows/4 {
		t.Errorf("the servers of host1 got %v of %d flows", count, flows)
	}
	if err := shared.StopServer(t.Context(), "host1-vm1"); err != nil {
		t.Fatal(err)
	}
	s.awaitAlive(t, 2)
	// New flows, and those of the dead server.
	for port, vm := range ask(first, flows, "while one is dead") {
		if vm != 1 {
			t.Errorf("flow %d went to the dead server", port)
		}
	}
	if err := shared.StartServer(t.Context(), "host1-vm1"); err != nil {
		t.Fatal(err)
	}
	s.awaitAlive(t, 3)
	next := first + flows
	await(t, "new flows to both servers", func(context.Context) error {
		next += 50
		at := ask(next, 50, "back")
		both := [2]int{}
		for _, vm := range at {
			both[vm]++
		}
		if both[0] == 0 || both[1] == 0 {
			return fmt.Errorf("they got %v", both)
		}
		return nil
	})
	await(t, "host1 counts what it chose for", func(ctx context.Context) error {
		if n := reasons(ctx, t, "host1")["spread"]; n < 2*flows {
			return fmt.Errorf("spread is %d", n)
		}
		return nil
	})
}

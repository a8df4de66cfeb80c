package lab_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// TestMuxesDoNotHerd checks three muxes that assign connections to six servers by
// least-connections, while hosts sample their servers only once a second, so that the muxes' data
// is late. If all muxes chose the server that seems least loaded, it would get all connections of a
// second. As each mux takes the others' assignments into account, no server may have more than half
// of that more than another.
func TestMuxesDoNotHerd(t *testing.T) {
	topology := lab.DefaultTopology()
	topology.Name = fmt.Sprintf("herd%d", os.Getpid())
	topology.Muxes, topology.Hosts.VMs, topology.Routers.Daemon = 3, 2, daemon()
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), topology.Name); err != nil {
			t.Error(err)
		}
	})
	l, err := lab.Up(t.Context(), topology, lab.Options{Binary: program})
	if err != nil {
		t.Fatal(err)
	}
	before := shared
	shared = l
	t.Cleanup(func() { shared = before })
	logsOnFailure(t, l)
	for i := range topology.Hosts.Count {
		if err := l.ReplaceAgent(t.Context(), fmt.Sprintf("host%d", 1+i), program, "--load-interval", "1s"); err != nil {
			t.Fatal(err)
		}
	}
	web := service{
		name: "herd", number: 92, protocol: "tcp", port: 80, dipPort: 8080, only4: true,
		backends: []string{"host1-vm1", "host1-vm2", "host2-vm1", "host2-vm2", "host3-vm1", "host3-vm2"},
		more:     "  affinity: cookie\n  scheduler: least-connections\n",
	}
	web.up(t)
	const connections, every = 420, 20 * time.Millisecond
	open := map[string][]net.Conn{}
	var begun []time.Time
	pace := time.NewTicker(every)
	defer pace.Stop()
	for range connections {
		<-pace.C
		conn, name := hello(t, web.targets()[0])
		open[name] = append(open[name], conn)
		begun = append(begun, time.Now())
	}
	most := 0 // within a second
	for i, at := range begun {
		n, _ := slices.BinarySearchFunc(begun[i:], at.Add(time.Second), time.Time.Compare)
		most = max(most, n)
	}
	counts := map[string]int{}
	least, fullest := connections, 0
	for _, name := range web.backends {
		counts[name] = len(open[name])
		least, fullest = min(least, counts[name]), max(fullest, counts[name])
	}
	t.Logf("up to %d connections a second; servers have %v", most, counts)
	if fullest-least > most/2+4 {
		t.Errorf("the fullest server has %d connections more than the emptiest, where up to %d come in a second: %v", fullest-least, most, counts)
	}
	givers := 0
	for _, n := range muxPackets(t, web, connections) {
		if n > connections/10 {
			givers++
		}
	}
	if givers < 2 {
		t.Errorf("%d muxes gave connections", givers)
	}
	awaitKnown(t, web, counts)
}

// muxPackets returns the packets that each mux counted for members of a service, when they are at
// least this many.
func muxPackets(t *testing.T, s service, least uint64) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	await(t, "muxes have counted packets of "+s.name, func(ctx context.Context) error {
		clear(out)
		for _, n := range status(ctx, t).GetNodes() {
			for _, m := range n.GetMembers() {
				if n.GetRole() == "mux" && m.GetPort() == uint32(s.port) && m.GetVip() == s.vips()[0].String() {
					out[n.GetName()] += m.GetPackets()
				}
			}
		}
		total := uint64(0)
		for _, n := range out {
			total += n
		}
		if total < least {
			return fmt.Errorf("%v", out)
		}
		return nil
	})
	return out
}

// awaitKnown waits until the manager has these numbers of connections of servers.
func awaitKnown(t *testing.T, s service, counts map[string]int) {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint32{}
	for name, n := range counts {
		want[dipOf(t, name).String()] = uint32(n)
	}
	await(t, "hosts have told of all connections", func(ctx context.Context) error {
		answer, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{LoadOf: s.name}))
		if err != nil {
			return err
		}
		for _, of := range answer.Msg.GetLoad() {
			if of.GetLoad().GetConnections() != want[of.GetDip()] {
				return fmt.Errorf("%s has %d connections, known are %v", of.GetDip(), want[of.GetDip()], of.GetLoad())
			}
		}
		return nil
	})
}

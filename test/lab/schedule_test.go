package lab_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// awaitSchedule waits until every mux assigns new connections of a service by a sequence of
// `places` places, the next one to a server if one is named.
func awaitSchedule(t *testing.T, s service, places int, dip string) {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("the next of a sequence of %d places", places)
	await(t, want, func(ctx context.Context) error {
		answer, err := client.Trace(ctx, connect.NewRequest(&apiv1.TraceRequest{
			Client: "198.51.100.250", ClientPort: 4242, Vip: s.vips()[0].String(), Port: uint32(s.port), Protocol: s.protocol,
		}))
		if err != nil {
			return err
		}
		if n := len(answer.Msg.GetResults()); n != shared.Topology.Muxes {
			return fmt.Errorf("%d muxes answered", n)
		}
		for _, r := range answer.Msg.GetResults() {
			if !strings.Contains(strings.Join(r.GetSteps(), "\n"), want) {
				return fmt.Errorf("%s says %q", r.GetNode(), r.GetSteps())
			}
			if dip != "" && r.GetDip() != dip {
				return fmt.Errorf("%s would choose %s", r.GetNode(), r.GetDip())
			}
		}
		return nil
	})
}

// hello opens a connection that stays open, and returns the name of its server.
func hello(t *testing.T, target string) (net.Conn, string) {
	t.Helper()
	conn, err := dial("tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", target); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	name, err := bufio.NewReader(answer.Body).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return conn, strings.TrimSpace(name)
}

// TestRoundRobin checks that every CPU of every mux assigns connections to the servers in turn, so
// that no server exceeds its share by more than the number of such CPUs.
func TestRoundRobin(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{
		name: "roundrobin", number: 90, protocol: "tcp", port: 80, dipPort: 8080, only4: true, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"},
		more: "  affinity: flow\n  scheduler: round-robin\n",
	}
	web.up(t)
	awaitSchedule(t, web, 3, "")
	const each = 100
	cpus := shared.Topology.Muxes * runtime.NumCPU()
	for name, n := range servers(t, web.targets()[0], 3*each) {
		if n < each-cpus || n > each+cpus {
			t.Errorf("%s has %d connections of %d, with %d CPUs", name, n, 3*each, cpus)
		}
	}
}

// TestLeastConnections checks that a server gets all new connections as soon as muxes have the
// report that it has fewer than the other.
func TestLeastConnections(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{
		name: "least", number: 91, protocol: "tcp", port: 80, dipPort: 8080, only4: true, backends: []string{"host1-vm1", "host2-vm1"},
		more: "  affinity: flow\n  scheduler: least-connections\n",
	}
	web.up(t)
	awaitSchedule(t, web, 1, "") // without connections one of them is filled first
	open := map[string][]net.Conn{}
	for len(open["host1-vm1"]) < 12 || len(open["host2-vm1"]) < 12 {
		conn, name := hello(t, web.targets()[0])
		open[name] = append(open[name], conn)
		if n := len(open["host1-vm1"]) + len(open["host2-vm1"]); n > 200 {
			t.Fatalf("of %d connections one server has %d", n, len(open["host1-vm1"]))
		}
	}
	for _, conn := range open["host1-vm1"] {
		conn.Close()
	}
	dip := dipOf(t, "host1-vm1")
	await(t, "host1-vm1 is known to have no connections", func(ctx context.Context) error {
		_, muxes, err := loadKnown(ctx, "least", dip)
		if err != nil {
			return err
		}
		for name, l := range muxes {
			if l == nil || l.Connections == nil || l.GetConnections() != 0 {
				return fmt.Errorf("%s knows %v", name, l)
			}
		}
		return nil
	})
	awaitSchedule(t, web, 1, dip.String())
	for i := range 8 {
		if _, name := hello(t, web.targets()[0]); name != "host1-vm1" {
			t.Errorf("connection %d is with %s, which has %d", i, name, len(open["host2-vm1"]))
		}
	}
}

package lab_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
)

// connections are long-lived connections through a TCP echo service.
type connections []net.Conn

// dialMany opens connections to the targets in turn and sends one message over each.
func dialMany(t *testing.T, targets []string, n int) connections {
	t.Helper()
	var all connections
	for i := range n {
		conn, err := dial("tcp", targets[i%len(targets)])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		all = append(all, conn)
	}
	all.speak(t, "opened")
	return all
}

// speak sends a message over every connection and waits for its echo, because only the right server
// accepts the connection.
func (c connections) speak(t *testing.T, when string) {
	t.Helper()
	for i, conn := range c {
		message := []byte(fmt.Sprintf("%d %s", i, when))
		got := make([]byte, len(message))
		_, err := conn.Write(message)
		if err == nil {
			_, err = io.ReadFull(conn, got)
		}
		if err != nil || string(got) != string(message) {
			t.Errorf("connection %d from %s, %s: %q, %v", i, conn.LocalAddr(), when, got, err)
		}
	}
}

// flowsOf returns the sum of the flows of a service that the muxes report: all, and those of
// draining members.
func flowsOf(ctx context.Context, t *testing.T, service string) (all, draining uint64) {
	t.Helper()
	for _, n := range status(ctx, t).GetNodes() {
		for _, m := range n.GetMembers() {
			if m.GetService() == service {
				all += m.GetFlows()
				if m.GetDraining() {
					draining += m.GetFlows()
				}
			}
		}
	}
	return all, draining
}

// with writes the backends of a service with an additional field on one machine.
func with(s service, vm, field string) func(lab.Node) string {
	return func(n lab.Node) string {
		text := s.perFamily(n)
		if n.Name == vm {
			text = strings.ReplaceAll(text, "}", ", "+field+"}")
		}
		return text
	}
}

// Connections stay on their servers while one drains, and while agents die and are replaced by
// agents with other tables.
func TestFlowsOutliveDrainAndUpgrade(t *testing.T) {
	logsOnFailure(t, shared)
	ctx := t.Context()
	echo := service{name: "flows", number: 42, protocol: "tcp", port: 7, dipPort: 7, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"}}
	echo.up(t)
	conns := dialMany(t, echo.targets(), 30)
	drained := echo
	drained.entry = with(echo, "host1-vm1", "drain: true")
	if _, err := shared.Apply(ctx, drained.yaml(t)); err != nil {
		t.Fatal(err)
	}
	await(t, "flows of draining backends", func(ctx context.Context) error {
		if all, left := flowsOf(ctx, t, echo.name); left == 0 || left == all {
			return fmt.Errorf("%d of %d flows", left, all)
		}
		return nil
	})
	conns.speak(t, "drained")
	for _, flags := range [][]string{nil, {"--flows", "65536"}, nil} {
		for _, node := range []string{"mux1", "mux2"} {
			if err := shared.ReplaceAgent(ctx, node, program, flags...); err != nil {
				t.Fatal(err)
			}
		}
		conns.speak(t, fmt.Sprintf("replaced with %v", flags))
	}
	for _, c := range conns {
		c.Close()
	}
}

// A service that fails open keeps its VIP when all its backends are dead, also across a restart of
// the agents. It stops failing open when one is healthy again.
func TestFailOpen(t *testing.T) {
	logsOnFailure(t, shared)
	ctx := t.Context()
	web := service{name: "failopen", number: 43, protocol: "tcp", port: 80, dipPort: 8080, more: "  failOpen: true\n", backends: []string{"host1-vm2", "host2-vm2"}}
	web.up(t)
	for _, vm := range web.backends {
		if err := shared.StopServer(ctx, vm); err != nil {
			t.Fatal(err)
		}
	}
	web.awaitAlive(t, 0)
	web.awaitHops(t, shared.Topology.Muxes)
	if err := shared.RestartAgent(ctx, "mux1"); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 0)
	web.awaitHops(t, shared.Topology.Muxes)
	for _, vm := range web.backends {
		if err := shared.StartServer(ctx, vm); err != nil {
			t.Fatal(err)
		}
	}
	web.awaitAlive(t, 2)
	for _, target := range web.targets() {
		servers(t, target, 10)
	}
}

// Backups serve only while too few of the primaries do.
func TestBackupsServe(t *testing.T) {
	logsOnFailure(t, shared)
	ctx := t.Context()
	web := service{name: "backups", number: 44, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm2", "host2-vm2", "host3-vm1"}}
	web.entry = with(web, "host3-vm1", "backup: true")
	web.up(t)
	expect := func(when string, backups bool) {
		t.Helper()
		await(t, when, func(context.Context) error {
			for _, target := range web.targets() {
				if got := servers(t, target, 30); (got["host3-vm1"] > 0) != backups {
					return fmt.Errorf("%s: answers came from %v", target, got)
				}
			}
			return nil
		})
	}
	expect("no answers of the backup with all others alive", false)
	if err := shared.StopServer(ctx, "host1-vm2"); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 2)
	expect("no answers of the backup with half of the others alive", false)
	if err := shared.StopServer(ctx, "host2-vm2"); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 1)
	expect("answers of the backup alone", true)
	for _, vm := range []string{"host1-vm2", "host2-vm2"} {
		if err := shared.StartServer(ctx, vm); err != nil {
			t.Fatal(err)
		}
	}
	web.awaitAlive(t, 3)
	expect("no answers of the backup again", false)
}

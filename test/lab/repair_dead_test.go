package lab_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// dies drops all packets to and from a host and its first server until the returned function is
// called.
func dies(t *testing.T, host string) (back func()) {
	t.Helper()
	var ends []func()
	for _, name := range []string{host, host + "-vm1"} {
		n, err := shared.Topology.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, rule(t, "router1", "-4", "to", n.Addresses().V4.Addr().String(), "blackhole"),
			rule(t, "router1", "-6", "to", n.Addresses().V6.Addr().String(), "blackhole"))
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// Connections to a removed server whose machine is dead are reset, whether it died before or after
// the removal: hosts do not forward their packets to a dead machine for the rest of the repair
// window.
func TestConnectionsToTheDeadAreReset(t *testing.T) {
	logsOnFailure(t, shared)
	t.Cleanup(func() {
		if err := shared.WaitReady(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		service
		first bool // it dies before it is removed
	}{
		{service{name: "dead-left", number: 238, protocol: "tcp", port: 7, dipPort: 7, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"}}, true},
		{service{name: "left-dead", number: 239, protocol: "tcp", port: 7, dipPort: 7, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"}, more: "  affinity: hash\n"}, false},
	} {
		c.up(t)
		conns := dialMany(t, c.targets(), 30)
		var back func()
		if c.first {
			back = dies(t, "host1")
			c.awaitAlive(t, 2)
		}
		after := c.service
		after.backends = c.backends[1:]
		if c.first { // host1 cannot apply it
			revision, err := shared.Apply(t.Context(), after.yaml(t))
			if err != nil {
				t.Fatal(err)
			}
			await(t, fmt.Sprintf("all nodes but host1 at revision %d", revision), func(ctx context.Context) error {
				for _, n := range status(ctx, t).GetNodes() {
					if n.GetName() != "host1" && n.GetSyncedRevision() < revision {
						return fmt.Errorf("%s is at %d", n.GetName(), n.GetSyncedRevision())
					}
				}
				return nil
			})
		} else {
			after.apply(t)
		}
		after.awaitAlive(t, 2)
		if !c.first {
			conns.speak(t, "it was taken out and lives")
			for _, host := range []string{"host2", "host3"} {
				await(t, host+" probes the machine that was left", func(context.Context) error { return logs(host, "former host reachable") })
			}
			back = dies(t, "host1")
		}
		resets := 0
		for i, conn := range conns {
			message := []byte("is it dead?")
			if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, err := conn.Write(message)
			if err == nil {
				_, err = conn.Read(make([]byte, len(message)))
			}
			switch {
			case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
				resets++
			case err != nil:
				t.Errorf("%s: connection %d: %v, want an answer or a reset", c.name, i, err)
			}
		}
		if resets == 0 {
			t.Errorf("%s: no connection was reset", c.name)
		}
		t.Logf("%s: %d of %d connections were reset, the others were answered", c.name, resets, len(conns))
		back()
		if err := shared.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// logs returns an error unless a node's agent logged a message.
func logs(node, message string) error {
	text, err := os.ReadFile(shared.LogPath(node))
	if err == nil && !strings.Contains(string(text), message) {
		err = fmt.Errorf("its log has no %q", message)
	}
	return err
}

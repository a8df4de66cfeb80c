package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// phased returns a service whose backends are added and removed slowly. The backend named drained
// drains.
func phased(backends []string, drained string) service {
	s := service{name: "phased", number: 60, protocol: "tcp", port: 80, dipPort: 8080, backends: backends, only4: true}
	s.entry = func(vm lab.Node) string {
		return fmt.Sprintf("  - {dip: %q, port: 8080, host: %q, drain: %v}\n", vm.Addresses().V4.Addr(), lab.HostAddresses(vm.Index).V4.Addr(), vm.Name == drained)
	}
	// The steps during a drain or slow start take time on a busy machine.
	s.health = fastHTTP + "\n  slowStart: 10s\n  drainTimeout: 10s"
	return s
}

// A drained backend keeps its connections until the limit and gets no new ones. Then it is removed
// from the ring. A new backend, or one that no longer drains, is in slow start until it has its
// weight.
func TestDrainLimitAndSlowStart(t *testing.T) {
	logsOnFailure(t, shared)
	all := []string{"host1-vm1", "host2-vm1", "host3-vm1"}
	web := phased(all[:2], "")
	web.up(t)
	conn, err := dial("tcp", web.targets()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	held := ask(t, conn)
	phased(all[:2], held).apply(t)
	for range 5 {
		if again := ask(t, conn); again != held {
			t.Errorf("the connection went from %s to %s", held, again)
		}
	}
	if who := servers(t, web.targets()[0], 20); who[held] != 0 {
		t.Errorf("new connections went to %v, %s drains", who, held)
	}
	decided(t, "one drains", func(d *apiv1.MemberDecision) bool { return d.GetDraining() != nil && d.GetDrained() != nil })
	web.awaitAlive(t, 1)
	decided(t, "none is left", nil)

	phased(all, held).apply(t)
	decided(t, "one grows", func(d *apiv1.MemberDecision) bool { return d.GetWarming() != nil && d.GetShare() < 100 })
	decided(t, "all have grown", nil)
	web.awaitAlive(t, 2)
	if who := servers(t, web.targets()[0], 40); len(who) != 2 || who[held] != 0 {
		t.Errorf("answers are from %v, want those of two but %s", who, held)
	}
}

// ask requests a server's name over an open connection.
func ask(t *testing.T, conn net.Conn) string {
	t.Helper()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: phased\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	name, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(name))
}

// decided waits for a decision of the service that matches, or for none at all if fits is nil.
func decided(t *testing.T, what string, fits func(*apiv1.MemberDecision) bool) {
	t.Helper()
	await(t, what, func(ctx context.Context) error {
		answer := status(ctx, t)
		if answer.GetRevision() == 0 {
			return errors.New("no answer")
		}
		var last error
		for _, d := range answer.GetDecisions() {
			if d.GetService() != "phased" {
				continue
			}
			if fits != nil && fits(d) {
				return nil
			}
			last = fmt.Errorf("decided is %v", d)
		}
		if last == nil && fits != nil {
			last = errors.New("nothing is decided")
		}
		return last
	})
}

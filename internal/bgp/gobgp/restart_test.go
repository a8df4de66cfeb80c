package gobgp

import (
	"bufio"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/bgp"
)

// speakerEnv makes the test's program a speaker, "first" or "next".
const speakerEnv = "SHUNT_TEST_SPEAKER"

// TestSpeakerIsReplaced: while a speaker is killed and started again with Restarting, the router
// keeps all routes of both families, with a second peer that is not reachable. The router's log of
// the kernel's routes has no change. A route that the new speaker does not announce is removed.
func TestSpeakerIsReplaced(t *testing.T) {
	state := wanted("md5secret", "203.0.113.10", "203.0.113.11", "2001:db8:f::10")
	state.Peers = append(state.Peers, bgp.Peer{Address: netip.MustParseAddr("10.10.0.2"), ASN: 65000})
	if which := os.Getenv(speakerEnv); which != "" {
		s := New(Options{ListenPort: 179, Restarting: which == "next", Logger: slog.New(slog.NewTextHandler(os.Stdout, nil))})
		if which == "next" {
			state.Routes = state.Routes[:1:1]
			state.Routes = append(state.Routes, wanted("", "2001:db8:f::10").Routes...)
		}
		if err := s.Set(context.Background(), state); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	if !ownNamespace(t) {
		return
	}
	r := newRouter(t, "md5secret")
	start := func(which string) *exec.Cmd {
		t.Helper()
		c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), speakerEnv+"="+which)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill(); c.Wait() })
		return c
	}
	const v4, gone, v6 = "203.0.113.10/32", "203.0.113.11/32", "2001:db8:f::10/128"
	first := start("first")
	r.until("routes of both families arrive", func() bool { return r.route(v4) != nil && r.route(gone) != nil && r.route(v6) != nil })
	r.until("BFD is up at the router", func() bool { return strings.Contains(r.ask("show bfd peers"), "Status: up") })
	changes := r.routeChanges()
	before := r.connections()

	first.Process.Kill()
	first.Wait()
	start("next")
	r.until("the next session is established", func() bool { return r.connections() != before })
	r.until("the route that is not announced any more goes", func() bool { return r.route(gone) == nil })
	r.until("BFD watches the next session", func() bool { return strings.Contains(r.ask("show bfd peers"), "Status: up") })
	if r.route(v4) == nil || r.route(v6) == nil {
		t.Error("a route that stays is gone")
	}
	for _, line := range changes("203.0.113.11") {
		if strings.HasPrefix(line, "Deleted ") && !strings.Contains(line, " 203.0.113.11 ") && !strings.Contains(line, "blackhole") {
			t.Errorf("the router's kernel withdrew a route: %s", line)
		}
	}
}

// routeChanges begins to follow the routes of the router's kernel. The returned function waits
// until a route that contains last is deleted, and returns all changes until then.
func (r *router) routeChanges() func(last string) []string {
	r.t.Helper()
	monitor := exec.Command("nsenter", "--net=/run/netns/"+r.namespace, "ip", "monitor", "route")
	out, err := monitor.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := monitor.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { monitor.Process.Kill(); monitor.Wait() })
	lines := bufio.NewScanner(out)
	// The monitor is ready once it reports a change made for this purpose.
	mark := func(word string) (seen []string) {
		for lines.Scan() {
			seen = append(seen, lines.Text())
			if strings.Contains(lines.Text(), "Deleted") && strings.Contains(lines.Text(), word) {
				return seen
			}
		}
		r.t.Fatalf("the monitor of routes ended: %v", lines.Err())
		return nil
	}
	marked := make(chan struct{})
	go func() { mark("192.0.2.77"); close(marked) }()
	r.until("the monitor of routes follows", func() bool {
		exec.Command("ip", "-n", r.namespace, "route", "add", "blackhole", "192.0.2.77").Run()
		exec.Command("ip", "-n", r.namespace, "route", "del", "blackhole", "192.0.2.77").Run()
		select {
		case <-marked:
			return true
		default:
			return false
		}
	})
	return mark
}

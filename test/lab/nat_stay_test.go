package lab_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asker is a client connection that repeatedly requests its server's name.
type asker struct {
	target string
	conn   net.Conn
	from   *bufio.Reader
	server string
}

// askers opens `each` connections to each VIP of services, each with its first response.
func askers(t *testing.T, each int, of ...service) (all []*asker) {
	t.Helper()
	for _, s := range of {
		for _, target := range s.targets() {
			for range each {
				conn, err := dial("tcp", target)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				a := &asker{target: target, conn: conn, from: bufio.NewReader(conn)}
				if a.server, err = a.ask(); err != nil {
					t.Fatal(err)
				}
				all = append(all, a)
			}
		}
	}
	return all
}

// ask sends another request.
func (a *asker) ask() (string, error) {
	if err := a.conn.SetDeadline(time.Now().Add(eventually)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(a.conn, "GET / HTTP/1.1\r\nHost: lab\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(a.from, nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// TestTranslatedConnectionsStay checks that connections survive restarts of the muxes' agents,
// tables of other sizes, and key rotations of cookies. Those of a stopped mux are reset by their
// servers immediately. The others continue.
func TestTranslatedConnectionsStay(t *testing.T) {
	logsOnFailure(t, shared)
	plain := []stranger{newStranger(t, 1, "1"), newStranger(t, 2, "2")}
	flow := translatedService("nat-stay-flow", 150, "tcp", webPort, "", plain...)
	split := translatedService("nat-stay-r", 151, "tcp", webPort, "  affinity: cookie\n", plain...)
	zero := translatedService("nat-stay-z", 152, "tcp", webPort, "  affinity: cookie\n  cookie: {form: split-z}\n", plain...)
	for _, s := range []service{flow, split, zero} {
		s.up(t)
	}
	awaitKeys(t, append(split.vips(), zero.vips()...), "steady")
	all := askers(t, 8, flow, split, zero)
	goOn := func(after string) {
		t.Helper()
		for _, a := range all {
			if name, err := a.ask(); err != nil || name != a.server {
				t.Errorf("after %s, %s: answer %q, expected %q: %v", after, a.target, name, a.server, err)
			}
		}
	}
	for mux := 1; mux <= shared.Topology.Muxes; mux++ {
		if err := shared.RestartAgent(t.Context(), fmt.Sprintf("mux%d", mux)); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []service{flow, split, zero} {
		s.awaitAlive(t, len(plain))
	}
	goOn("restarts of agents")
	for _, flags := range [][]string{{"--nat-sessions", "8192"}, nil} {
		for mux := 1; mux <= shared.Topology.Muxes; mux++ {
			if err := shared.ReplaceAgent(t.Context(), fmt.Sprintf("mux%d", mux), program, flags...); err != nil {
				t.Fatal(err)
			}
		}
		goOn(fmt.Sprintf("tables with %v", flags))
	}
	for _, vip := range append(split.vips(), zero.vips()...) {
		mustShunt(t, "rotate", "keys", vip.String())
	}
	awaitKeys(t, append(split.vips(), zero.vips()...), "rest")
	goOn("other keys")
	all = append(all, askers(t, 4, split, zero)...)
	goOn("connections with the other keys")

	mustShunt(t, "drain", "node", "mux2")
	t.Cleanup(func() {
		mustShunt(t, "undrain", "node", "mux2")
		natRoute(t, 2, 1)
		flow.awaitHops(t, shared.Topology.Muxes)
	})
	natRoute(t, 2, 0)
	for _, s := range []service{flow, split, zero} {
		s.awaitHops(t, 1)
	}
	stay, reset := 0, 0
	for _, a := range all {
		switch name, err := a.ask(); {
		case err == nil && name == a.server:
			stay++
		case errors.Is(err, unix.ECONNRESET):
			reset++
		default:
			t.Errorf("%s: answer %q, expected %q or a reset: %v", a.target, name, a.server, err)
		}
	}
	if stay == 0 || reset == 0 {
		t.Errorf("%d connections went on and %d were reset: both are expected of %d", stay, reset, len(all))
	}
}

// TestTranslatingMuxLeaves checks that a mux alone advertises its source addresses, and no longer
// when it is drained. Clients are still served.
func TestTranslatingMuxLeaves(t *testing.T) {
	logsOnFailure(t, shared)
	plain := newStranger(t, 1, "1")
	s := translatedService("nat-leave", 149, "tcp", webPort, "", plain)
	s.up(t)
	mustShunt(t, "drain", "node", "mux2")
	t.Cleanup(func() {
		mustShunt(t, "undrain", "node", "mux2")
		natRoute(t, 2, 1)
		s.awaitHops(t, shared.Topology.Muxes)
	})
	natRoute(t, 2, 0)
	natRoute(t, 1, 1)
	s.awaitHops(t, 1)
	for _, target := range s.targets() {
		if got := servers(t, target, 5); got[plain.name] != 5 {
			t.Errorf("%s: answers are from %v", target, got)
		}
	}
}

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// newPeer returns a manager with a peer address. It is not started yet.
func newPeer(t *testing.T, name string) *managerProcess {
	t.Helper()
	p := newManagerProcess(t)
	// Choose a port outside the kernel's ephemeral range, because the manager binds it only at its
	// start, more than once.
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", strings.Split(p.addr, ":")[0], 20000+rand.IntN(10000)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		p.name, p.args = name, []string{"--peer", l.Addr().String()}
		return p
	}
}

// join starts p as an additional manager of the cluster of the others.
func (p *managerProcess) join(of *managerProcess) {
	p.t.Helper()
	text := of.must("", "token", "create", "--node", p.name, "--role", "manager")
	file := filepath.Join(p.t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	args := p.args
	p.args = append(args, "--join", of.addr, "--token-file", file)
	p.start()
	p.args = args
}

// patiently runs a command line against this manager only.
func (p *managerProcess) patiently(stdin string, args ...string) (string, int) {
	return patiently(func() (string, int) {
		return p.shunt(stdin, append(slices.Clone(args), "--server", "https://"+p.addr)...)
	})
}

// must runs a command line against the manager. The command must succeed.
func (p *managerProcess) must(stdin string, args ...string) string {
	p.t.Helper()
	out, code := p.patiently(stdin, args...)
	if code != exitOK {
		p.t.Fatalf("%v: exit code %d: %s", args, code, out)
	}
	return out
}

// TestManagersGrow follows docs/ops/members.md: one manager without a peer address becomes three,
// one is lost and replaced, then the majority is lost and one manager continues.
func TestManagersGrow(t *testing.T) {
	m1, m2, m3 := newPeer(t, "m1"), newPeer(t, "m2"), newPeer(t, "m3")
	args := m1.args
	m1.args = nil
	m1.start()
	m1.must(testNetwork, "apply", "-f", "-")
	if rest, code := m1.end(syscall.SIGTERM); code != exitOK {
		t.Fatal(rest)
	}
	m1.args = args
	m1.start()
	m2.join(m1)
	m3.join(m2)
	m3.must(testService(1), "apply", "-f", "-")
	for _, p := range []*managerProcess{m1, m2, m3} {
		if out := p.must("", "get", "services"); !strings.Contains(out, "s1") {
			t.Errorf("%s has no s1: %s", p.name, out)
		}
		if out := p.must("", "member", "list"); strings.Count(out, "\n") != 4 || strings.Count(out, " leads ") != 1 {
			t.Errorf("%s lists: %s", p.name, out)
		}
	}
	m1.end(syscall.SIGKILL)
	if out, code := m2.patiently("", "member", "remove", "m3"); code != exitFailed || !strings.Contains(out, "no majority") {
		t.Errorf("removing one of two that are up: exit code %d: %s", code, out)
	}
	m2.must("", "member", "remove", "m1")
	m2.must(testService(2), "apply", "-f", "-")
	// Its old data cannot be reused.
	m1.launch()
	if rest, code := m1.end(syscall.Signal(0)); code != exitFailed || !strings.Contains(rest, "join again") {
		t.Errorf("what was removed starts: exit code %d: %s", code, rest)
	}
	m1.data = filepath.Join(t.TempDir(), "data")
	m1.join(m3)
	if out := m1.must("", "get", "services"); !strings.Contains(out, "s1") || !strings.Contains(out, "s2") {
		t.Errorf("the new m1 has: %s", out)
	}
	m2.end(syscall.SIGKILL)
	m3.end(syscall.SIGKILL)
	m1.end(syscall.SIGKILL)
	m1.args = append(args, "--force-new-cluster")
	m1.start()
	m1.must(testService(3), "apply", "-f", "-")
	for i := range 3 {
		if out := m1.must("", "get", "services"); !strings.Contains(out, fmt.Sprintf("s%d", i+1)) {
			t.Errorf("m1 alone has no s%d: %s", i+1, out)
		}
	}
}

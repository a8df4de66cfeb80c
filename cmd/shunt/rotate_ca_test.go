package main

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
)

// adminCopy returns a copy of an admin's client configuration with the addresses of managers.
func adminCopy(t *testing.T, of *managerProcess, managers ...*managerProcess) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(of.data, "admin.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var servers strings.Builder
	servers.WriteString("server:\n")
	for _, m := range managers {
		servers.WriteString("- https://" + m.addr + "\n")
	}
	first, rest, _ := strings.Cut(string(content), "server: ")
	_, rest, _ = strings.Cut(rest, "\n")
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(first+servers.String()+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// commandOf runs a command line with a client configuration.
func commandOf(config string, args ...string) (string, int) {
	var out, err bytes.Buffer
	code := run(append([]string{"--config", config}, args...), strings.NewReader(""), &out, &err)
	return out.String() + err.String(), code
}

// formerPairs returns certificates of the previous CA: a manager's own, and others that an attacker
// with its data directory can make.
func formerPairs(t *testing.T, data string) map[string]tls.Certificate {
	t.Helper()
	ca, pairs := caOf(t, data), map[string]tls.Certificate{"a manager's own": pairOf(t, data)}
	for _, role := range []string{pki.RoleManager, pki.RoleAdmin, "mux"} {
		cert, key, err := ca.Client("m1", role, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if pairs["one of role "+role], err = tls.X509KeyPair(cert, key); err != nil {
			t.Fatal(err)
		}
	}
	return pairs
}

// TestRotateCA replaces the CA of two running managers. Midway the leader is killed and the command
// is run again. Afterwards neither certificates of the previous CA nor old tokens open a connection
// to the API or to the store's peer address.
func TestRotateCA(t *testing.T) {
	m1, m2, m3 := newPeer(t, "m1"), newPeer(t, "m2"), newPeer(t, "m3")
	m1.start()
	m2.join(m1)
	m3.join(m1)
	m1.must(testNetwork+"---"+testService(1), "apply", "-f", "-")
	config, former := adminCopy(t, m1, m1, m2, m3), adminCopy(t, m1, m1, m2, m3)
	pairs := formerPairs(t, m3.data)

	if out, code := commandOf(config, "rotate", "ca"); code != exitFailed || !strings.Contains(out, "nodes/host1") || !strings.Contains(out, "--without host1") {
		t.Fatalf("with a node that is away: exit code %d: %s", code, out)
	}
	m1.must("", "access", "create", "--name", "robot", "--role", "viewer")
	if out, code := commandOf(config, "rotate", "ca", "--without", "host1"); code != exitFailed || !strings.Contains(out, "robot") || !strings.Contains(out, "--yes") {
		t.Fatalf("with access that ends: exit code %d: %s", code, out)
	}
	if out, code := commandOf(config, "rotate", "ca", "--status"); code != exitOK || !strings.Contains(out, "never replaced") {
		t.Fatalf("status before: exit code %d: %s", code, out)
	}

	type result struct {
		out  string
		code int
	}
	done := make(chan result, 1)
	go func() {
		out, code := commandOf(config, "rotate", "ca", "--without", "host1", "--yes")
		done <- result{out, code}
	}()
	// The leader dies while managers begin to accept both CAs, and restarts.
	for {
		if out, _ := commandOf(config, "rotate", "ca", "--status"); strings.Contains(out, "phase trust") {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	m1.end(syscall.SIGKILL)
	m1.start()
	r := <-done
	t.Log(r.out)
	if r.code != exitOK || !strings.Contains(r.out, "node host1 was left out") {
		t.Fatalf("exit code %d: %s", r.code, r.out)
	}
	roots := caOf(t, m1.data).Pool()
	for _, m := range []*managerProcess{m1, m2, m3} {
		for _, addr := range []string{m.addr, m.args[1]} {
			if err := opens(addr, roots, pairOf(t, m.data)); err != nil {
				t.Errorf("%s refuses a certificate of the new CA, so that the refusals below show nothing: %v", addr, err)
			}
			for which, pair := range pairs {
				if err := opens(addr, roots, pair); err == nil || !strings.Contains(err.Error(), "tls: ") {
					t.Errorf("%s, with %s of the former CA: %v: must be refused by TLS", addr, which, err)
				}
			}
		}
		if _, err := os.Stat(filepath.Join(m.data, "pki", "generations")); !os.IsNotExist(err) {
			t.Errorf("%s keeps the former secrets: %v", m.name, err)
		}
	}
	if out, code := commandOf(former, "get", "services"); code != exitFailed {
		t.Errorf("the former administrator's configuration: exit code %d: %s", code, out)
	}
	for _, c := range []string{config, filepath.Join(m2.data, "admin.yaml")} {
		out, code := patiently(func() (string, int) { return commandOf(c, "get", "services") })
		if code != exitOK || !strings.Contains(out, "s1") {
			t.Errorf("%s: exit code %d: %s", c, code, out)
		}
	}
	if out, _ := patiently(func() (string, int) { return commandOf(config, "access", "list") }); strings.Contains(out, "robot") {
		t.Errorf("access of before: %s", out)
	}
	// The store is sealed with the new secret: all managers restart from their files.
	for _, m := range []*managerProcess{m1, m2, m3} {
		m.end(syscall.SIGKILL)
		m.start()
	}
	if out, code := patiently(func() (string, int) { return commandOf(config, "get", "services") }); code != exitOK || !strings.Contains(out, "s1") {
		t.Errorf("after restarts: exit code %d: %s", code, out)
	}
}

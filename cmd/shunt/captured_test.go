package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
)

// opens makes a TLS request with a certificate and returns the error if the peer refuses the
// connection.
func opens(addr string, roots *x509.CertPool, pair tls.Certificate) error {
	conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, ServerName: pki.ServerName, Certificates: []tls.Certificate{pair}})
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// pairOf reads a certificate with its key from a data directory.
func pairOf(t *testing.T, data string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(data, "pki", "manager.crt"), filepath.Join(data, "pki", "manager.key"))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// caOf reads the CA of a data directory, as an attacker with a copy can.
func caOf(t *testing.T, data string) *pki.CA {
	t.Helper()
	var parts [2][]byte
	for i, name := range []string{"ca.crt", "ca.key"} {
		var err error
		if parts[i], err = os.ReadFile(filepath.Join(data, "pki", name)); err != nil {
			t.Fatal(err)
		}
	}
	ca, err := pki.ParseCA(parts[0], parts[1])
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// TestCapturedManager follows docs/ops/captured-manager.md: an attacker has a copy of a manager's
// data directory. Afterwards the state is unchanged, other managers can join, and neither the
// captured certificate nor certificates of the captured CA open a connection to the API or to the
// store's peer address.
func TestCapturedManager(t *testing.T) {
	m1, m2 := newPeer(t, "m1"), newPeer(t, "m2")
	m1.start()
	m2.join(m1)
	m1.must(testNetwork+"---"+testService(1), "apply", "-f", "-")
	captured, formerAdmin := m2.data, filepath.Join(m1.data, "admin.yaml")
	manager, ca := pairOf(t, captured), caOf(t, captured)
	pairs := map[string]tls.Certificate{"its own certificate": manager}
	for _, role := range []string{pki.RoleManager, pki.RoleAdmin, "mux"} {
		cert, key, err := ca.Client("m1", role, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if pairs["one of role "+role], err = tls.X509KeyPair(cert, key); err != nil {
			t.Fatal(err)
		}
	}
	m1.must("", "member", "remove", "m2")
	m2.end(syscall.Signal(0))
	file := filepath.Join(t.TempDir(), "b")
	m1.must("", "backup", "-f", file, "--plain")
	m1.end(syscall.SIGTERM)

	m1.data = filepath.Join(t.TempDir(), "data")
	out, code := commandLine("restore", file, "--new-ca", "--data", m1.data, "--name", "m1")
	if code != exitOK || !strings.Contains(out, "another CA") {
		t.Fatalf("restore: exit code %d: %s", code, out)
	}
	m1.start()
	if out := m1.must("", "get", "services"); !strings.Contains(out, "s1") {
		t.Errorf("the state after it: %s", out)
	}
	api, peer := m1.addr, m1.args[1]
	roots := caOf(t, m1.data).Pool()
	for _, addr := range []string{api, peer} {
		if err := opens(addr, roots, pairOf(t, m1.data)); err != nil {
			t.Errorf("%s refuses the manager's new certificate, so that the refusals below show nothing: %v", addr, err)
		}
		for which, pair := range pairs {
			if err := opens(addr, roots, pair); err == nil || !strings.Contains(fmt.Sprint(err), "tls: ") {
				t.Errorf("%s, with %s of the captured CA: %v: must be refused by TLS", addr, which, err)
			}
		}
	}
	if out, code := commandLine("--config", formerAdmin, "get", "services"); code != exitFailed {
		t.Errorf("the former administrator's configuration: exit code %d: %s", code, out)
	}
	m2.data = filepath.Join(t.TempDir(), "data")
	m2.join(m1)
	if out := m2.must("", "member", "list"); strings.Count(out, "\n") != 3 {
		t.Errorf("members: %s", out)
	}
	// The captured manager cannot join either.
	m2.end(syscall.SIGTERM)
	m2.data = captured
	m2.launch()
	if rest, code := m2.end(syscall.Signal(0)); code != exitFailed {
		t.Errorf("what was captured starts: exit code %d: %s", code, rest)
	}
}

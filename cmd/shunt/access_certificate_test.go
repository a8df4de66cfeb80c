package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/pki"
)

// TestCertificateIsWritten checks that only the owner can read the file, and that no file is
// written when the manager refuses.
func TestCertificateIsWritten(t *testing.T) {
	fake := startFake(t)
	file := filepath.Join(t.TempDir(), "alice.yaml")
	var out, wrong bytes.Buffer
	args := []string{"access", "certificate", "--name", "alice", "--role", "tenant", "-f", file, "--tenant"}
	if code := run(append(args, "gone"), strings.NewReader(""), &out, &wrong); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a refusal leaves a file: %v", err)
	}
	if code := run(append(args, "shop"), strings.NewReader(""), &out, &wrong); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &wrong)
	}
	if want := file + " written: access 0123456789abcdef, good until 2026-02-01T03:04:05Z\n"; out.String() != want {
		t.Errorf("it prints %q, want %q", &out, want)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v, want mode 0600", info, err)
	}
	c, err := readConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.ParseKey([]byte(c.Key)); err != nil || len(c.Server) != 1 || c.Server[0] != fake.url || c.Cert != "CERTIFICATE\n" || !strings.Contains(c.CA, "BEGIN CERTIFICATE") {
		t.Errorf("the configuration has server %v, cert %q, ca %q, key: %v", c.Server, c.Cert, c.CA, err)
	}
}

// TestCertificateOfAPerson checks against a real manager that a certificate grants access until it
// is revoked.
func TestCertificateOfAPerson(t *testing.T) {
	p := newManagerProcess(t)
	p.start()
	p.must(testNetwork+"---\nkind: Tenant\nname: shop\n---"+strings.Replace(testService(1), "kind: Service\n", "kind: Service\ntenant: shop\n", 1)+"---"+testService(2), "apply", "-f", "-")
	file := filepath.Join(t.TempDir(), "bob.yaml")
	p.must("", "access", "certificate", "--name", "bob", "--role", "tenant", "--tenant", "shop", "-f", file)
	if out, code := p.shunt("", "get", "services", "--config", file); code != exitOK || !strings.Contains(out, "s1") || strings.Contains(out, "s2") {
		t.Fatalf("bob of shop: exit code %d: %s", code, out)
	}
	var id string
	for line := range strings.Lines(p.must("", "access", "list")) {
		if words := strings.Fields(line); words[1] == "certificate" && words[2] == "bob" {
			id = words[0]
		}
	}
	p.must("", "access", "revoke", id)
	if out, code := p.shunt("", "get", "services", "--config", file); code != exitFailed || !strings.Contains(out, "client certificate: it was revoked") {
		t.Errorf("bob afterwards: exit code %d: %s", code, out)
	}
}

// TestTokenIsWritten checks that only the owner can read the new file, and that no file is written
// when the manager refuses.
func TestTokenIsWritten(t *testing.T) {
	p := newManagerProcess(t)
	p.start()
	p.must(testNetwork, "apply", "-f", "-")
	for name, args := range map[string][]string{
		"access": {"access", "create", "--name", "ci", "--role", "tenant", "--tenant", "shop"},
		"join":   {"token", "create", "--node", "mux1", "--role", "mux"},
	} {
		file := filepath.Join(t.TempDir(), name+".token")
		if name == "access" {
			if out, code := p.shunt("", append(args, "-f", file)...); code != exitFailed || !strings.Contains(out, "shop") {
				t.Errorf("%s without its Tenant: exit code %d: %s", name, code, out)
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("%s: a refusal leaves a file: %v", name, err)
			}
			p.must("kind: Tenant\nname: shop\n", "apply", "-f", "-")
		}
		out, want := p.must("", append(args, "-f", file)...), ""
		if name == "join" {
			want = "shunt token create: there is no Node mux1: what joins with this token has nothing to do until one is applied\n"
		}
		if out != want {
			t.Errorf("%s: it prints %q, want %q", name, out, want)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v %v, want mode 0600", name, info, err)
		}
		text, err := os.ReadFile(file)
		if err != nil || len(strings.Fields(string(text))) != 1 || !strings.HasPrefix(string(text), "shunt") {
			t.Errorf("%s: the file has %d bytes: %v", name, len(text), err)
		}
		if out, code := p.shunt("", append(args, "-f", file)...); code != exitFailed || !strings.Contains(out, "must be a new file") {
			t.Errorf("%s again: exit code %d: %s", name, code, out)
		}
	}
}

package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const day = 24 * time.Hour

func TestExpiry(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		life, age time.Duration
		want      string
	}{
		{30 * day, 0, ""},
		{30 * day, 16 * day, ""},
		{30 * day, 16*day + time.Second, " expires at 2026-02-01T03:04:05Z: make another"},
		{30 * day, 30 * day, " expired at 2026-02-01T03:04:05Z: make another"},
		{365 * day, 351 * day, ""},
		{365 * day, 352 * day, " expires at 2027-01-02T03:04:05Z: make another"},
		{day, 12 * time.Hour, ""},
		{day, 12*time.Hour + time.Second, " expires at 2026-01-03T03:04:05Z: make another"},
	} {
		got := expiry("alice.yaml", &x509.Certificate{NotBefore: begin, NotAfter: begin.Add(c.life)}, begin.Add(c.age))
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || got != "" && !strings.Contains(got, "alice.yaml") {
			t.Errorf("%v old of %v: %q, want %q", c.age, c.life, got, c.want)
		}
	}
}

// TestExpiryIsToldOnce checks that a command that connects repeatedly prints one warning.
func TestExpiryIsToldOnce(t *testing.T) {
	var told []string
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	g := &globals{now: func() time.Time { return begin }}
	leaf := &x509.Certificate{NotBefore: begin, NotAfter: begin.Add(time.Second)}
	g.now = func() time.Time { return begin.Add(time.Second) }
	g.warnExpiry("f", leaf) // note is nil
	g.note = func(text string) { told = append(told, text) }
	g.warnExpiry("f", leaf)
	g.warnExpiry("f", leaf)
	if len(told) != 1 {
		t.Errorf("told %q", told)
	}
}

// TestExpiringCertificate checks against a real manager that commands warn on standard error in
// time, whatever they print, and that the make command prints the expiry.
func TestExpiringCertificate(t *testing.T) {
	p := newManagerProcess(t)
	p.start()
	config := p.must("", "access", "certificate", "--name", "bob", "--role", "viewer", "--ttl", "480h")
	lines := strings.Split(strings.TrimSpace(config), "\n")
	if said := lines[len(lines)-1]; !strings.HasPrefix(said, "shunt access certificate: access ") || !strings.Contains(said, ", good until 20") {
		t.Errorf("on standard error: %q", said)
	}
	file := filepath.Join(t.TempDir(), "alice.yaml")
	said := p.must("", "access", "certificate", "--name", "alice", "--role", "viewer", "--ttl", "480h", "-f", file)
	_, until, _ := strings.Cut(strings.TrimSpace(said), "good until ")
	end, err := time.Parse(time.RFC3339, until)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		left time.Duration
		warn bool
	}{{15 * day, false}, {9 * day, true}} {
		var stdout, stderr bytes.Buffer
		now := func() time.Time { return end.Add(-c.left) }
		code := runAt(now, []string{"get", "services", "-o", "json", "--config", file}, strings.NewReader(""), &stdout, &stderr)
		if code != exitOK || !json.Valid(stdout.Bytes()) {
			t.Fatalf("exit code %d: %s%s", code, &stdout, &stderr)
		}
		want := ""
		if c.warn {
			want = "shunt get: warning: the client certificate in " + file + " expires at " + until + ": make another (shunt access certificate)\n"
		}
		if stderr.String() != want {
			t.Errorf("%v before its end: %q, want %q", c.left, &stderr, want)
		}
	}
}

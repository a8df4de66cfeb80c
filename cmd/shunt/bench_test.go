package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Cases that cannot be measured are refused before anything is loaded or built.
func TestBenchRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"bench"}, "accepts 1 arg(s), received 0"},
		{[]string{"bench", "nonsense"}, `suite: "nonsense": must be one of dataplane, live, rings, memory, http, control, failover, nodes, place, health, snat, host, hostflows, repair, cheetah, all`},
		{[]string{"bench", "dataplane", "--case", "quic/1Mi"}, `case: "quic/1Mi": must be one of hash/1`},
		{[]string{"bench", "all", "--case", "hash/1"}, "--case: must come with one suite, not with all"},
		{[]string{"bench", "all", "--short", "--write", "docs"}, "--write: must not come with --short"},
		{[]string{"bench", "live", "--katran", "balancer.bpf.o"}, "--katran: must come with suite dataplane, not with live"},
		{[]string{"bench", "cheetah", "--case", "idle-700,completion", "--write", "docs"}, "--write: must not come with --case, but for idle-700: the page of cheetah has the figures of one run"},
		{[]string{"bench", "dataplane", "--katran", "balancer.bpf.o", "--write", "docs"}, "--katran: must not come with --write"},
		{[]string{"bench", "dataplane", "-o", "yaml"}, "-o yaml: must be table or json"},
	} {
		var out, errs bytes.Buffer
		if code := run(c.args, strings.NewReader(""), &out, &errs); code != exitUsage || !strings.Contains(errs.String(), c.want) {
			t.Errorf("shunt %s: exit code %d, says %q; want %d and %q", strings.Join(c.args, " "), code, errs.String(), exitUsage, c.want)
		}
	}
}

// TestBenchCompareRefuses checks that wrong flags of the comparison are refused before anything is
// measured.
func TestBenchCompareRefuses(t *testing.T) {
	reasons := filepath.Join(t.TempDir(), "reasons.yaml")
	if err := os.WriteFile(reasons, []byte("- suite: nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "--base: is missing"},
		{[]string{"--base", "x", "more"}, exitUsage, "more"},
		{[]string{"--base", "x", "--rounds", "0"}, exitUsage, "--rounds: 0: must be 1 to 100"},
		{[]string{"--base", "x", "--limit", "0.5"}, exitUsage, "--limit: 0.5: must be at least 1"},
		{[]string{"--base", "x", "--suites", "nonsense"}, exitUsage, `--suites: suite: "nonsense": must be one of`},
		{[]string{"--base", "x", "--case", "nonsense"}, exitUsage, `--case: "nonsense": is in none of the suites`},
		{[]string{"--base", "x", "--reasons", reasons + ".not"}, exitFailed, "--reasons: open"},
		{[]string{"--base", "x", "--reasons", reasons}, exitFailed, `reasons[0].suite: "nonsense"`},
		{[]string{"--base", "x", "--reasons", "", "-o", "yaml"}, exitUsage, "-o yaml: must be table or json"},
		{[]string{"--base", "/nonexistent", "--reasons", "", "--suites", "rings", "--short"}, exitFailed, "--base: /nonexistent: cannot be run"},
	} {
		var out, errs bytes.Buffer
		code := run(append([]string{"bench", "compare"}, c.args...), strings.NewReader(""), &out, &errs)
		if code != c.code || !strings.Contains(errs.String(), c.want) || out.Len() != 0 {
			t.Errorf("shunt bench compare %s: exit code %d, %q and %q; want %d and %q", strings.Join(c.args, " "), code, out.String(), errs.String(), c.code, c.want)
		}
	}
}

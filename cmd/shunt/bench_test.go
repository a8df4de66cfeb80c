package main

import (
	"bytes"
	"strings"
	"testing"
)

// What cannot be measured is refused before anything is loaded or built.
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
		{[]string{"bench", "dataplane", "--katran", "balancer.bpf.o", "--write", "docs"}, "--katran: must not come with --write"},
		{[]string{"bench", "dataplane", "-o", "yaml"}, "-o yaml: must be table or json"},
	} {
		var out, errs bytes.Buffer
		if code := run(c.args, strings.NewReader(""), &out, &errs); code != exitUsage || !strings.Contains(errs.String(), c.want) {
			t.Errorf("shunt %s: exit code %d, says %q; want %d and %q", strings.Join(c.args, " "), code, errs.String(), exitUsage, c.want)
		}
	}
}

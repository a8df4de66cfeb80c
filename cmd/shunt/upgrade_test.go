package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// writePace is the interval at which the writer of an upgrade applies a service.
const writePace = 20 * time.Millisecond

// writer applies services, one after the other, with a configuration that lists all managers, until
// stop. stop returns how many were acknowledged and how long the slowest took. The first failure
// ends it.
func writer(t *testing.T, config string) (stop func() (acknowledged int, slowest time.Duration)) {
	ctx, done := make(chan struct{}), make(chan struct{})
	var n int
	var slowest time.Duration
	go func() {
		defer close(done)
		tick := time.NewTicker(writePace)
		defer tick.Stop()
		for ; ; n++ {
			select {
			case <-tick.C:
			case <-ctx:
				return
			}
			began := time.Now()
			out, code := applyBy(config, testService(n))
			if code != exitOK {
				t.Errorf("service %d after %s: %s", n, time.Since(began), out)
				return
			}
			slowest = max(slowest, time.Since(began))
		}
	}()
	once := sync.OnceFunc(func() { close(ctx) })
	t.Cleanup(once)
	return func() (int, time.Duration) {
		once()
		<-done
		return n, slowest
	}
}

// applyBy repeats an idempotent apply, because a broken connection does not reveal whether it was
// done, and an election may take long.
func applyBy(config, text string) (string, int) {
	return patiently(func() (string, int) {
		var out strings.Builder
		code := run([]string{"--config", config, "apply", "-f", "-"}, strings.NewReader(text), &out, &out)
		return out.String(), code
	})
}

// TestUpgradeOneByOne replaces three managers of the previous schema by this build, one after the
// other, while a writer runs. No write fails permanently and no acknowledged write is lost. The
// schema is raised when the last manager is replaced, not before. Until then every leader refuses
// objects of the new schema, and the error names the manager that does not support it. Afterwards a
// build of the previous schema does not start.
func TestUpgradeOneByOne(t *testing.T) {
	all := []*managerProcess{newPeer(t, "m1"), newPeer(t, "m2"), newPeer(t, "m3")}
	for _, p := range all {
		p.schema = "2"
	}
	all[0].start()
	all[1].join(all[0])
	all[2].join(all[0])
	all[0].must(testNetwork, "apply", "-f", "-")
	admin, err := os.ReadFile(filepath.Join(all[0].data, "admin.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var servers strings.Builder
	for _, p := range all {
		fmt.Fprintf(&servers, "\n- https://%s", p.addr)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := strings.Replace(string(admin), "server: https://"+all[0].addr, "server:"+servers.String(), 1)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	schema := func(p *managerProcess) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "b")
		return p.must("", "backup", "-f", file, "--plain")
	}
	const newer = `
kind: Service
name: newer
vip: 203.1.0.1
endpoints:
- protocol: tcp
  port: 80
  backends: [{dip: 10.20.1.11, port: 8080, host: 10.20.1.1}]
  health: {https: {path: /ready}}
`
	stop := writer(t, config)
	for i, p := range all {
		if rest, code := p.end(syscall.SIGTERM); code != exitOK {
			t.Errorf("%s: exit code %d: %s", p.name, code, rest)
		}
		p.schema = ""
		p.start()
		if i == 2 {
			break
		}
		if out := schema(p); !strings.Contains(out, "schema       2\n") && !strings.Contains(out, "schema     2\n") {
			t.Errorf("%d of 3 are replaced: %s", i+1, out)
		}
		const why = "endpoints[0].health.https: needs schema 3 of the state, which has 2 until every manager is of a version that knows it: "
		out, code := applyBy(config, newer)
		if code != exitFailed || !strings.Contains(out, why) || !strings.Contains(out, "m3 of version of schema 2 does not") {
			t.Errorf("%d of 3 are replaced, and a new kind of check is applied: exit code %d: %s", i+1, code, out)
		}
	}
	for out := ""; !strings.Contains(out, "schema       3\n") && !strings.Contains(out, "schema     3\n"); out = schema(all[0]) {
		<-time.After(100 * time.Millisecond)
	}
	if out, code := applyBy(config, newer); code != exitOK {
		t.Errorf("the schema is raised, and a new kind of check is applied: %s", out)
	}
	n, slowest := stop()
	t.Logf("%d writes, the slowest took %s", n, slowest)
	for _, p := range all {
		out := p.must("", "get", "services")
		for i := range n {
			if !strings.Contains(out, fmt.Sprintf("\ns%d ", i)) {
				t.Errorf("%s: s%d of %d was acknowledged and is lost", p.name, i, n)
			}
		}
	}
	all[2].end(syscall.SIGTERM)
	all[2].schema = "2"
	all[2].launch()
	if rest, code := all[2].end(syscall.Signal(0)); code != exitFailed || !strings.Contains(rest, "too old for it") {
		t.Errorf("a build of the former schema: exit code %d: %s", code, rest)
	}
}

package lab_test

import (
	"bytes"
	"context"
	"testing"
)

// A machine that restarts without its host agent responds on its servers' own addresses, but drops
// all tunneled packets. The checks here do not set a path: by default they use the tunnel, in both
// families, and detect it.
func TestHostWithoutItsProgramsIsFound(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{
		name: "gone", number: 240, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"},
		health: "{http: {path: /healthz}, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}",
	}
	direct := service{
		name: "gone-direct", number: 241, protocol: "tcp", port: 80, dipPort: 8080, backends: web.backends,
		health: "{http: {path: /healthz}, through: direct, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}",
	}
	web.up(t)
	direct.up(t)
	t.Cleanup(func() {
		if err := shared.WaitReady(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := shared.KillAgent(t.Context(), "host2"); err != nil {
		t.Fatal(err)
	}
	stop := shared.Command(program, "host", "--stop", "--bpffs", shared.Pins("host2"), "--run", shared.RunDir("host2"))
	var said bytes.Buffer
	stop.Stdout, stop.Stderr = &said, &said
	if err := shared.StartOn("host2", stop); err != nil {
		t.Fatal(err)
	}
	if err := stop.Wait(); err != nil {
		t.Fatalf("%v: %v: %s", stop.Args, err, said.String())
	}
	web.awaitAlive(t, 2)
	for _, target := range web.targets() {
		// Each of 40 requests is a new connection and must succeed.
		if counts := servers(t, target, 40); len(counts) != 2 || counts["host2-vm1"] > 0 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
	}
	// The servers of the machine run, so direct checks detect no failure.
	direct.awaitAlive(t, 3)
	if err := shared.StartAgent("host2"); err != nil {
		t.Fatal(err)
	}
	if err := shared.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 3)
	for _, target := range web.targets() {
		if counts := servers(t, target, 60); len(counts) != 3 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
	}
}

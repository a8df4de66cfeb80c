package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
)

// stopMux ends a mux: its agent and its program, with all its tables.
func stopMux(t *testing.T, mux string) {
	t.Helper()
	stop := shared.Command(program, "mux", "--stop", "--bpffs", shared.Pins(mux), "--run", shared.RunDir(mux))
	var said bytes.Buffer
	stop.Stdout, stop.Stderr = &said, &said
	if err := shared.StartOn(mux, stop); err != nil {
		t.Fatal(err)
	}
	if err := stop.Wait(); err != nil {
		t.Fatalf("%v: %v: %s", stop.Args, err, said.String())
	}
}

// TestSNATRoomByAge checks that a mux with capacity for fewer VIPs with SNAT than exist serves
// those of the oldest services, each time that it starts. It does not advertise the newest, and
// other muxes serve it.
func TestSNATRoomByAge(t *testing.T) {
	logsOnFailure(t, shared)
	web := newWeb(t)
	t.Cleanup(func() {
		if err := shared.RestartAgent(context.Background(), "mux1"); err != nil {
			t.Error(err)
		}
	})
	vms := []string{"host1-vm1", "host2-vm1", "host3-vm1"}
	var all []service
	for i, name := range []string{"snat-room-c", "snat-room-b", "snat-room-a"} {
		// The newest is the first by name.
		s := outboundService(name, 150-i, vms[i])
		s.apply(t)
		all = append(all, s)
	}
	asks := func(when string) {
		t.Helper()
		for i, s := range all {
			await(t, when+": an answer to curl from "+vms[i], func(ctx context.Context) error {
				from, err := curl(ctx, vms[i], web)
				if err == nil && from.Addr() != s.vips()[0] {
					err = fmt.Errorf("it asks from %s, want %s", from, s.vips()[0])
				}
				return err
			})
		}
	}
	asks("at first")
	for _, s := range all {
		awaitRoutes(t, s.vips()[0], shared.Topology.Muxes)
	}
	for turn := range 3 {
		stopMux(t, "mux1")
		if err := shared.ReplaceAgent(t.Context(), "mux1", program, "--max-snat-vips", "2"); err != nil {
			t.Fatal(err)
		}
		when := fmt.Sprintf("turn %d", turn)
		for _, s := range all[:2] {
			awaitRoutes(t, s.vips()[0], shared.Topology.Muxes)
		}
		awaitRoutes(t, all[2].vips()[0], shared.Topology.Muxes-1)
		asks(when)
	}
}

package lab_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestSNATRelease checks that ports that a server is asked to return stay with their connections,
// and new connections get others. Revoked ports are removed immediately, at hosts and muxes.
func TestSNATRelease(t *testing.T) {
	logsOnFailure(t, shared)
	o, web := newOutside(t), newWeb(t)
	const vm = "host2-vm2"
	s := outboundService("snat-release", 152, vm)
	s.apply(t)
	vip := s.vips()[0]
	asks := func(when string) {
		t.Helper()
		await(t, when+": an answer to curl", func(ctx context.Context) error {
			from, err := curl(ctx, vm, web)
			if err == nil && from.Addr() != vip {
				err = fmt.Errorf("it asks from %s, want %s", from, vip)
			}
			return err
		})
	}
	asks("at first")
	conns := o.dialOut(t, []string{vm}, 20)
	held := func(ctx context.Context) []uint32 {
		all, err := leases(ctx, s.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, ports := range all {
			return ports
		}
		return nil
	}
	before := held(t.Context())
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	release := func(force bool) uint32 {
		t.Helper()
		answer, err := client.ReleaseSNAT(t.Context(), connect.NewRequest(&apiv1.ReleaseSNATRequest{Service: s.name, Force: force}))
		if err != nil {
			t.Fatal(err)
		}
		released := answer.Msg.GetReleased()
		if len(released) != 1 {
			t.Fatalf("released %v, want ports of one server", released)
		}
		return released[0].GetPorts()
	}
	if n := release(false); n != uint32(8*len(before)) {
		t.Errorf("%d ports are asked back, it had %d", n, 8*len(before))
	}
	conns.speak(t, "when its ports are asked back")
	asks("when its ports are asked back")
	conns.speak(t, "when it has others")
	await(t, "ports beside those that were asked back", func(ctx context.Context) error {
		for _, p := range held(ctx) {
			if !slices.Contains(before, p) {
				return nil
			}
		}
		return fmt.Errorf("it has %v, as before", held(ctx))
	})

	release(true)
	await(t, "none of the ports that were taken", func(ctx context.Context) error {
		for _, p := range held(ctx) {
			if slices.Contains(before, p) {
				return fmt.Errorf("it has %v, and had %v", held(ctx), before)
			}
		}
		return nil
	})
	asks("when its ports were taken")
	audit, err := client.AuditSNAT(t.Context(), connect.NewRequest(&apiv1.AuditSNATRequest{Service: s.name}))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range audit.Msg.GetNodes() {
		if n.GetDifferent() > 0 || n.GetError() != "" {
			t.Errorf("%s: %v", n.GetNode(), n)
		}
	}
}

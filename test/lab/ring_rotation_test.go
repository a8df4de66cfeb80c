package lab_test

import (
	"context"
	"fmt"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestRingRotationKeepsConnections checks that a rotation of the ring key breaks no connection of
// endpoints with affinity hash, although nearly all map to other backends: hosts find the previous
// ones by the previous key. Without repair they break.
func TestRingRotationKeepsConnections(t *testing.T) {
	logsOnFailure(t, shared)
	forgets := hashed("rotated-nothing", 152, "ipip", everyVM)
	forgets.more += "  repairWindow: 0s\n"
	cases := []*repaired{
		{service: hashed("rotated", 150, "ipip", everyVM)},
		{service: hashed("rotated-gue", 151, "gue", everyVM)},
		{service: forgets, forgets: true},
	}
	cases[1].entry = cases[1].both
	for _, c := range cases {
		c.up(t)
	}
	before := repairs(t.Context(), t)
	for _, c := range cases {
		const connections = 120
		conns := dialMany(t, c.targets(), connections)
		talk := conns.talk()
		client, err := shared.Client()
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.RotateRing(t.Context(), connect.NewRequest(&apiv1.RotateRingRequest{Scopes: []string{c.name}, Force: c.forgets}))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		await(t, fmt.Sprintf("all nodes at revision %d", res.Msg.GetRevision()), func(ctx context.Context) error {
			for _, n := range status(ctx, t).GetNodes() {
				if n.GetSyncedRevision() < res.Msg.GetRevision() {
					return fmt.Errorf("%s is at %d", n.GetName(), n.GetSyncedRevision())
				}
			}
			return nil
		})
		broken := talk.end()
		t.Logf("%s: %d of %d connections broke", c.name, len(broken), connections)
		if c.forgets && len(broken) == 0 {
			t.Errorf("%s: none broke: this test can say nothing of repair", c.name)
		}
		for i, err := range broken {
			if !c.forgets {
				t.Errorf("%s: connection %d from %s to %s broke: %v", c.name, i, conns[i].LocalAddr(), conns[i].RemoteAddr(), err)
			}
		}
		for _, conn := range conns {
			conn.Close()
		}
	}
	if now := repairs(t.Context(), t); now["repaired_away"] <= before["repaired_away"] {
		t.Errorf("repaired_away is %d, it was %d", now["repaired_away"], before["repaired_away"])
	}
}

package main

import (
	"context"
	"fmt"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// nodeWatch waits until a mux advertises no route.
type nodeWatch struct {
	node string
	// revision is that of the drain, which the mux must apply.
	revision int64
	// status requests the status from the manager, pause waits for a drainPoll, and tell prints
	// progress.
	status func() (*apiv1.StatusResponse, error)
	pause  func() error
	tell   func(format string, args ...any) error
}

// wait returns when the mux is connected, has applied the drain and advertises no VIP.
func (w *nodeWatch) wait() error {
	last := ""
	for {
		status, err := w.status()
		if err != nil {
			return err
		}
		state := w.state(nodeStatus(status, w.node))
		if state != last {
			if err := w.tell("%s\n", state); err != nil {
				return err
			}
		}
		if last = state; state == nodeDrained {
			return nil
		}
		if err := w.pause(); err != nil {
			return err
		}
	}
}

// announces refuses a node that is not a mux, because it never advertises a VIP.
func (g *globals) announces(ctx context.Context, name string) error {
	return g.call(ctx, func(ctx context.Context, c *client) error {
		objects, err := c.fetch(ctx, lb.KindNode, name)
		if err != nil {
			return err
		}
		if role := objects[0].GetNode().GetRole(); role != string(lb.RoleMux) {
			return fmt.Errorf("--wait: %s: must be a mux, and is a %s", lb.Ref(lb.KindNode, name), role)
		}
		return nil
	})
}

// nodeDrained is the state that ends the wait.
const nodeDrained = "drained"

// state returns the progress of the drain. The routes of a disconnected mux are unknown, because
// its BGP speaker may still advertise.
func (w *nodeWatch) state(n *apiv1.NodeStatus) string {
	routes := 0
	for _, r := range n.GetRoutes() {
		if r.GetAdvertised() {
			routes++
		}
	}
	switch {
	case !n.GetConnected():
		return "it is away"
	case n.GetSyncedRevision() < w.revision:
		return "it does not obey yet"
	case len(n.GetTables()) == 0:
		// It has just connected: every status of a mux has its tables.
		return "it has not said yet what it announces"
	case routes > 0:
		return fmt.Sprintf("%d VIPs left", routes)
	}
	return nodeDrained
}

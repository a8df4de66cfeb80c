package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// waitMembers waits until all connected nodes have applied a revision and every mux reports the
// wanted number of members of each service alive.
func (r *rig) waitMembers(ctx context.Context, revision int64, want map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		missing := r.missingMembers(ctx, revision, want)
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(missing, ctx.Err())
		case <-ticker.C:
		}
	}
}

// missingMembers returns the first condition of waitMembers that does not hold.
func (r *rig) missingMembers(ctx context.Context, revision int64, want map[string]int) error {
	answer, err := r.manager.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return err
	}
	for _, n := range answer.Msg.GetNodes() {
		if !n.GetConnected() {
			continue
		}
		if n.GetSyncedRevision() < revision || n.GetError() != "" {
			return fmt.Errorf("%s is at revision %d of %d: %s", n.GetName(), n.GetSyncedRevision(), revision, n.GetError())
		}
		alive := map[string]int{}
		for _, m := range n.GetMembers() {
			if m.GetAlive() && !m.GetUnknown() {
				alive[m.GetService()]++
			}
		}
		for service, members := range want {
			if n.GetRole() == "mux" && alive[service] != members {
				return fmt.Errorf("%s calls %d members of %s alive, not %d", n.GetName(), alive[service], service, members)
			}
		}
	}
	return nil
}

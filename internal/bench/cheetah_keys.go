package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// Purpose and phases of keys (apiv1.KeySet).
const (
	cookieKeys = "cookie"
	keysSteady = "steady" // all nodes have the single key
	keysRest   = "rest"   // all hosts stamp with the new one
)

// waitKeys waits until the cookie keys of a VIP are in a phase.
func (r *rig) waitKeys(ctx context.Context, vip netip.Addr, phase string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		found, err := r.keyPhase(ctx, vip)
		if err == nil && found == phase {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the cookie keys of %s to be in phase %s: they are in %q (%v): %w", vip, phase, found, err, ctx.Err())
		case <-ticker.C:
		}
	}
}

// keyPhase returns the phase of the cookie keys of a VIP, or "" if there are none.
func (r *rig) keyPhase(ctx context.Context, vip netip.Addr) (string, error) {
	answer, err := r.manager.ListKeys(ctx, connect.NewRequest(&apiv1.ListKeysRequest{Scopes: []string{vip.String()}}))
	if err != nil {
		return "", err
	}
	for _, k := range answer.Msg.GetKeys() {
		if k.GetPurpose() == cookieKeys {
			return k.GetPhase(), nil
		}
	}
	return "", nil
}

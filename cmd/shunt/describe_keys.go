package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// affinityText returns an endpoint's affinity and its carrier: "cookie (evc)", "cookie (quiclb,
// 17-byte ids)".
func affinityText(e *lb.Endpoint) string {
	switch {
	case e.QUIC != nil:
		return fmt.Sprintf("%s (quic %s)", e.Affinity, e.QUIC)
	case e.Cookie.Form != "":
		return fmt.Sprintf("%s (%s)", e.Affinity, e.Cookie.Form)
	}
	return e.Affinity
}

// schedulerText returns an endpoint's scheduler and its input.
func schedulerText(e *lb.Endpoint) string {
	if e.Schedule.By != "" {
		return e.Scheduler + " by " + e.Schedule.By
	}
	return e.Scheduler
}

// keysOf returns the keys of a service, or none if it needs none. A manager of the previous version
// returns none either.
func (c *client) keysOf(ctx context.Context, s *lb.Service) ([]*apiv1.KeySet, error) {
	if !plan.KeysOfCookies.Needs(s) && !plan.KeysOfCIDs.Needs(s) {
		return nil, nil
	}
	res, err := c.ListKeys(ctx, connect.NewRequest(&apiv1.ListKeysRequest{Scopes: []string{s.Name}}))
	if code := connect.CodeOf(err); err != nil && code != connect.CodeUnimplemented && code != connect.CodeInvalidArgument {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	return res.Msg.GetKeys(), nil
}

// keysOf writes the state of the keys that an endpoint's packets carry.
func (d *description) keysOf(service string, e *lb.Endpoint, key lb.EndpointKey) {
	purpose, scope := plan.KeysOfCookies, key.VIP.String()
	switch {
	case e.Cookies() && e.QUIC != nil && e.QUIC.Keyed():
		purpose, scope = plan.KeysOfCIDs, service
	case !e.StampsTCP():
		return
	}
	for _, k := range d.keys {
		if k.GetPurpose() == string(purpose) && k.GetScope() == scope {
			d.printf("  keys: %s\n", keysText(k, d.now))
		}
	}
}

// keysText returns one key set as text: "epoch 2, made 3d4h ago; epoch 1 is read until …".
func keysText(k *apiv1.KeySet, now time.Time) string {
	var out []string
	for _, e := range k.GetEpochs() {
		age := shortAge(now.Sub(e.GetMade().AsTime()))
		switch {
		case e.GetMints():
			out = append([]string{fmt.Sprintf("epoch %d, made %s ago", e.GetEpoch(), age)}, out...)
		case k.GetPhase() == string(plan.KeysSpread):
			out = append(out, fmt.Sprintf("epoch %d is on its way", e.GetEpoch()))
		case k.GetPhase() == string(plan.KeysRest):
			out = append(out, fmt.Sprintf("epoch %d is read until %s", e.GetEpoch(), timeText(k.GetDue())))
		default:
			out = append(out, fmt.Sprintf("epoch %d is read", e.GetEpoch()))
		}
	}
	if k.GetWaits() > 0 {
		waits := fmt.Sprintf("waits for %d nodes", k.GetWaits())
		if int(k.GetWaits()) == len(k.GetWaitsFor()) {
			waits = "waits for " + strings.Join(k.GetWaitsFor(), ", ")
		}
		out = append(out, fmt.Sprintf("phase %s %s", k.GetPhase(), waits))
	}
	return strings.Join(out, "; ")
}

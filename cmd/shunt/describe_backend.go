package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// isBackendKind reports whether a KIND of the command line means a backend.
func isBackendKind(kind string) bool {
	kind = strings.ToLower(kind)
	return kind == "backend" || kind == "backends"
}

// describeBackend prints a backend's check results at each node that probes it, and its resulting
// health.
func (c *client) describeBackend(ctx context.Context, g *globals, w io.Writer, request *apiv1.HealthOfRequest) error {
	response, err := c.HealthOf(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	if g.format != formatTable {
		texts, err := rawJSONs(response.Msg.GetBackends())
		if err != nil {
			return err
		}
		return g.format.encode(w, texts)
	}
	d := &description{w: w}
	d.field("Backend", backendText(request.GetDip(), request.GetPort()))
	for _, b := range response.Msg.GetBackends() {
		d.backendHealth(b)
	}
	if response.Msg.GetTruncated() {
		d.printf("\nIt is a backend of more endpoints than these %d: name a service.\n", len(response.Msg.GetBackends()))
	}
	return d.err
}

// backendHealth writes a backend as a member of one endpoint.
func (d *description) backendHealth(b *apiv1.BackendHealth) {
	key := endpointKey{b.GetService(), b.GetVip(), b.GetProtocol(), b.GetPort(), b.GetPortEnd()}
	d.printf("\nEndpoint %s of %s: member %d, %s\n", key, lb.Ref(lb.KindService, b.GetService()), b.GetMember(), backendText(b.GetDip(), b.GetDipPort()))
	rows := [][]string{{"NODE", "ROLE", "VERDICT", "SINCE", "LAST-CHECK"}}
	for _, n := range b.GetNodes() {
		rows = append(rows, []string{n.GetNode(), n.GetRole(), n.GetVerdict(), stampText(n.GetSince()), cmp.Or(n.GetError(), n.GetWords())})
	}
	d.table(rows)
	if len(rows) == 1 {
		d.printf("  no connected node checks it\n")
	}
	loads := [][]string{{"NODE", "CONNECTIONS", "CPU", "LOAD", "AGE"}}
	for _, n := range b.GetNodes() {
		if n.GetLoad() != nil {
			loads = append(loads, append([]string{n.GetNode()}, loadTexts(n.GetLoad())...))
		}
	}
	if len(loads) > 1 {
		d.printf("\n  Load\n")
		d.table(loads)
	}
	for _, n := range b.GetNodes() {
		for _, check := range n.GetChecks() {
			d.checkHealth(n.GetNode(), check)
		}
	}
	history := [][]string{{"TIME", "VERDICT", "BY", "WHY"}}
	for _, c := range b.GetHistory() {
		history = append(history, []string{stampText(c.GetTime()), c.GetVerdict(), c.GetNode(), c.GetWords()})
	}
	if len(history) > 1 {
		d.printf("\n  History\n")
		d.table(history)
	}
}

// checkHealth writes the state and the last results of one check.
func (d *description) checkHealth(node string, c *apiv1.CheckHealth) {
	state := "down"
	if c.GetAlive() {
		state = "up"
	}
	run := "not asked yet"
	switch {
	case c.GetGood() > 0:
		run = fmt.Sprintf("%d good in a row", c.GetGood())
	case c.GetBad() > 0:
		run = fmt.Sprintf("%d bad in a row", c.GetBad())
	case len(c.GetResults()) > 0:
		run = "no result counts"
	}
	d.printf("\n  %s at %s: %s, %s; up after %d good, down after %d bad\n", c.GetCheck(), node, state, run, c.GetRise(), c.GetFall())
	rows := [][]string{{"TIME", "RESULT", "TOOK", "WORDS"}}
	for _, r := range c.GetResults() {
		result := "bad"
		switch {
		case r.GetVoid():
			result = "void"
		case r.GetGood():
			result = "good"
		}
		rows = append(rows, []string{
			r.GetTime().AsTime().Format("2006-01-02T15:04:05.000Z"), result, tookText(r.GetTook().AsDuration()), r.GetWords(),
		})
	}
	d.table(rows)
}

// tookText returns a duration with three significant digits.
func tookText(d time.Duration) string {
	unit := time.Microsecond
	for _, u := range []time.Duration{10 * time.Microsecond, 100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond} {
		if d >= 100*u {
			unit = u
		}
	}
	return d.Round(unit).String()
}

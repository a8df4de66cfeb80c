package lab

import (
	"context"
	"fmt"
	"time"
)

// Bounds of the verdict.
const (
	// BFD detects the loss of a machine after three lost packets of 100 ms.
	maxGapMuxLoss = 400 * time.Millisecond
	// A dead server: two checks of 100 ms with a timeout of 100 ms, and the switch to the next
	// member.
	maxGapServer = 600 * time.Millisecond
	// Without failures responses arrive every 5 ms. Longer gaps come from other load on the
	// machine, and must still be shorter than that of a loss.
	maxGapQuiet = 400 * time.Millisecond
	// maxMoved bounds the requests in flight when a ring changes: hash affinity stores no flows, so
	// a request whose slot moves between its packets is lost.
	maxMoved = 2
)

// events runs the demo's events.
func (d *demo) events(ctx context.Context) error {
	lost, restarted := "mux3", "mux1"
	stopped, added, drained := VMName(1, 1), VMName(4, 1), VMName(2, 1)
	quiet := fmt.Sprintf("0 failed, gap < %d ms", maxGapQuiet.Milliseconds())
	moved := fmt.Sprintf("at most %d failed", maxMoved)
	for _, step := range []struct {
		name, rule string
		do         func(context.Context) error
		judge      func(Report) string
	}{
		{"steady traffic", quiet, func(context.Context) error { return nil }, judge(0, maxGapQuiet)},
		{"kill " + lost + " (link and processes)", fmt.Sprintf("gap < %d ms", maxGapMuxLoss.Milliseconds()),
			func(ctx context.Context) error { return d.lab.LoseMux(ctx, lost) }, judge(-1, maxGapMuxLoss)},
		{"restart agent of " + restarted + " (kill -9)", quiet,
			func(ctx context.Context) error { return d.lab.RestartAgent(ctx, restarted) }, judge(0, maxGapQuiet)},
		{"bring " + lost + " back", quiet,
			func(context.Context) error { return d.lab.ReviveMux(lost) }, judge(0, maxGapQuiet)},
		{"stop server " + stopped, fmt.Sprintf("gap < %d ms", maxGapServer.Milliseconds()),
			func(ctx context.Context) error { return d.lab.StopServer(ctx, stopped) }, judge(-1, maxGapServer)},
		{"add server " + added, moved + ", it serves",
			func(ctx context.Context) error {
				d.web.VMs = append(d.web.VMs, added)
				return d.apply(ctx)
			}, all(judge(maxMoved, maxGapServer), serves(added, true))},
		{"drain " + drained, moved + ", others serve",
			func(ctx context.Context) error {
				d.web.Draining[drained] = true
				return d.apply(ctx)
			}, all(judge(maxMoved, maxGapServer), serves(added, true))},
		{"after the drain", quiet + ", " + drained + " rests", func(context.Context) error { return nil },
			all(judge(0, maxGapQuiet), serves(drained, false))},
	} {
		if err := d.event(ctx, step.name, step.rule, step.do, step.judge); err != nil {
			return err
		}
	}
	return nil
}

// judge checks a report against the most failures (any number if negative) and the longest gap
// allowed.
func judge(failed int, gap time.Duration) func(Report) string {
	return func(r Report) string {
		switch {
		case r.Sent == 0:
			return "nothing was sent"
		case failed >= 0 && r.Failed > failed:
			return fmt.Sprintf("%d failed", r.Failed)
		case r.Gap >= gap:
			return fmt.Sprintf("gap %d ms", r.Gap.Milliseconds())
		}
		return ""
	}
}

// serves requires that a server responded, or did not.
func serves(vm string, want bool) func(Report) string {
	return func(r Report) string {
		switch n := r.Servers[vm]; {
		case want && n == 0:
			return vm + " answered nothing"
		case !want && n > 0:
			return fmt.Sprintf("%s answered %d", vm, n)
		}
		return ""
	}
}

// all checks every rule and returns the first that is violated.
func all(rules ...func(Report) string) func(Report) string {
	return func(r Report) string {
		for _, rule := range rules {
			if broken := rule(r); broken != "" {
				return broken
			}
		}
		return ""
	}
}

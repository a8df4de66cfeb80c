package main

import (
	"context"
	"log/slog"
	"net"

	"github.com/spf13/pflag"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/metrics"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/probe"
)

// metricsUsage describes the flag --metrics of the daemons.
const metricsUsage = "`address:port` to serve Prometheus metrics on, at /metrics, without TLS or authentication: an address of the management network (default: none)"

// metricsFlags select the address of a daemon's metrics, and whether it serves profiles.
type metricsFlags struct {
	address string // "" means none
	pprof   bool
}

func (f *metricsFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.address, "metrics", "", metricsUsage)
	fl.BoolVar(&f.pprof, "pprof", false, "serve profiles of this process at /debug/pprof/ of the address of --metrics (go tool pprof)")
}

// check refuses an address that cannot be listened on, and profiles without an address.
func (f *metricsFlags) check() error {
	if f.address != "" {
		if err := checkListen("--metrics", f.address); err != nil {
			return err
		}
	}
	if f.pprof && f.address == "" {
		return usagef("--pprof: needs --metrics: profiles are served on its address")
	}
	return nil
}

// serve answers scrapes until ctx ends. Without a listener it only waits.
func (f *metricsFlags) serve(ctx context.Context, l net.Listener, r *metrics.Registry) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	return metrics.Serve(ctx, l, r, f.pprof)
}

func thisBuild() metrics.Build { return metrics.Build{Version: version, Commit: commit()} }

// countStart returns how often agents of a run directory were started. An agent runs even if the
// count cannot be written, for example because the disk is full.
func countStart(runDir string, log *slog.Logger) uint64 {
	starts, err := metrics.CountStart(runDir)
	if err != nil {
		log.Warn("cannot count the start", "error", err)
	}
	return starts
}

func muxMetrics(f muxFlags, a *mux.Agent, tables dataplane.MuxTables, progress *agent.Progress, probes func() probe.Stats, log *slog.Logger) (*metrics.Registry, error) {
	return metrics.NewMux(metrics.Mux{
		Node:     metrics.Node{Name: f.name, Build: thisBuild(), Status: a.Status, Progress: progress, Probes: probes, Starts: countStart(f.run, log)},
		Counters: tables.Counters, Flips: a.Flips, Captures: a.Captures, Overruled: a.Overruled, LoadOf: a.LoadOf,
		Schedulers: func() []metrics.Scheduler {
			var out []metrics.Scheduler
			for _, s := range a.Schedulers() {
				out = append(out, metrics.Scheduler{Endpoint: s.Endpoint, Name: s.Scheduler, Unknown: s.Unknown})
			}
			return out
		},
	})
}

package main

import (
	"context"
	"net"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/metrics"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/probe"
)

// metricsUsage describes the flag --metrics of the daemons.
const metricsUsage = "`address:port` to serve Prometheus metrics on, at /metrics, without TLS or authentication: an address of the management network (default: none)"

// serveMetrics answers scrapes until ctx ends; without a listener there is nothing to do until then.
func serveMetrics(ctx context.Context, l net.Listener, r *metrics.Registry) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	return metrics.Serve(ctx, l, r)
}

func thisBuild() metrics.Build { return metrics.Build{Version: version, Commit: commit()} }

func muxMetrics(f muxFlags, a *mux.Agent, tables dataplane.MuxTables, progress *agent.Progress, probes func() probe.Stats) (*metrics.Registry, error) {
	starts, err := metrics.CountStart(f.run)
	if err != nil {
		return nil, err
	}
	return metrics.NewMux(metrics.Mux{
		Node:     metrics.Node{Name: f.name, Build: thisBuild(), Status: a.Status, Progress: progress, Probes: probes, Starts: starts},
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

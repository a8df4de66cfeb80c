package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

var failoverSuite = Suite{
	Name:  "failover",
	Title: "Loss of a mux",
	About: "16 flows, spread over two muxes by the router, send a SYN every 5 ms. Then one mux loses its link and every " +
		"process on it is killed with SIGKILL; BFD (100 ms × 3) is all that can tell the router. A flow's gap is the " +
		"longest time between two answers; `gap_ms` is the longest gap of any flow in any repetition, `p50_gap_ms` the " +
		"median over the repetitions.",
	Plotted: []string{"gap_ms", "p50_gap_ms"}, Unit: "ms",
	Cases: []string{"mux-kill"},
	Takes: 60 * time.Second, TakesShort: 30 * time.Second,
	Goals: []Goal{atMost("mux-kill", "gap_ms", 400)},
	run:   runFailover,
}

const (
	failoverVIP    = 30
	failoverProbes = 5 * time.Millisecond
	// failoverWatch is how long flows are watched after the loss, well above any acceptable gap.
	failoverWatch = 1500 * time.Millisecond
)

func runFailover(ctx context.Context, o Options, emit func(Row)) error {
	rounds := 7
	if o.Short {
		rounds = 1
	}
	return withRig(ctx, o, func(ctx context.Context, r *rig) error {
		if _, err := r.serve(ctx, "bench-failover", failoverVIP, r.backends(3)); err != nil {
			return err
		}
		var gaps []float64
		for i := range rounds {
			mux := fmt.Sprintf("mux%d", i%r.lab.Topology.Muxes+1)
			o.progressf("failover: loss of %s, %d of %d", mux, i+1, rounds)
			gap, err := r.loseMux(ctx, mux)
			if err != nil {
				return err
			}
			gaps = append(gaps, gap)
		}
		emit(Row{Case: "mux-kill", Fields: []Field{
			{"gap_ms", round(slices.Max(gaps))}, {"p50_gap_ms", round(Median(gaps))}, {"runs", rounds},
		}})
		return nil
	})
}

// loseMux stops a mux under traffic and restarts it. It returns the longest gap of any flow in ms.
func (r *rig) loseMux(ctx context.Context, mux string) (float64, error) {
	vip, err := r.serve(ctx, "bench-failover", failoverVIP, r.backends(3))
	if err != nil {
		return 0, err
	}
	p, err := r.probe(vip, servicePort, failoverProbes)
	if err != nil {
		return 0, err
	}
	defer p.close()
	p.hurry()
	if _, err := p.waitAll(ctx); err != nil {
		return 0, err
	}
	since := time.Now()
	if err := r.lab.LoseMux(ctx, mux); err != nil {
		return 0, err
	}
	if err := pause(ctx, failoverWatch); err != nil {
		return 0, err
	}
	gap := p.longest(since)
	if err := r.lab.ReviveMux(mux); err != nil {
		return 0, err
	}
	if err := r.lab.WaitReady(ctx); err != nil {
		return 0, err
	}
	return float64(gap) / float64(time.Millisecond), r.waitRoutes(ctx, vip, r.lab.Topology.Muxes)
}

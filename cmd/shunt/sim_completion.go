package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/figure"
	"github.com/shuntlb/shunt/internal/sim/balance"
)

// completionRow is the request duration under one scheduler.
type completionRow struct {
	Workload  string  `json:"workload"`
	Busy      float64 `json:"busy"`
	Scheduler string  `json:"scheduler"`
	Refresh   float64 `json:"refresh"` // 0: it does not use loads
	Requests  int     `json:"requests"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	// Better is the 99th percentile of plain hashing divided by this one.
	Better float64 `json:"p99_better"`

	round round
}

// newSimCompletion returns the command `shunt sim completion`.
func newSimCompletion(g *globals) *cobra.Command {
	var f balanceFlags
	var busy []float64
	var service, during time.Duration
	cmd := &cobra.Command{
		Use:   "completion",
		Short: "How long requests take under schedulers",
		Long: "How long requests take from their beginning to their end, each a connection of its own, while several muxes choose servers and hosts tell them loads now and\n" +
			"then. A server works for all that it has at once, each with an equal part of its time. Workload uniform: all requests need the same; bimodal: every tenth\n" +
			"needs ten times as much as the others; skewed: a thousand times. Schedulers that look at no loads have refresh 0.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, err := range []error{f.check(), within("busy", busy, 0.01, 0.99)} {
				if err != nil {
					return usageError{err}
				}
			}
			if service < 10*time.Millisecond || service > time.Minute {
				return usageError{fmt.Errorf("--service: %s: must be 10ms to 1m", service)}
			}
			if during < 10*service || during > time.Hour {
				return usageError{fmt.Errorf("--during: %s: must be ten times --service, up to 1h", during)}
			}
			return simOutput[completionRow]{
				rows: completion(f, busy, service, during), cells: completionCells, panels: completionPanels,
				heading: []string{"workload", "busy", "scheduler", "refresh", "requests", "p50_ms", "p99_ms", "p99_better"},
			}.print(cmd, g, f.simFlags)
		},
	}
	f.register(cmd, 64)
	flags := cmd.Flags()
	flags.Float64SliceVar(&busy, "busy", []float64{0.5, 0.6, 0.7, 0.8, 0.9}, "share of their time that servers are busy: 0.01 to 0.99")
	flags.DurationVar(&service, "service", 100*time.Millisecond, "what a request needs on average of a server that has no other: 10ms to 1m")
	flags.DurationVar(&during, "during", 200*time.Second, "how long requests come, after a fifth of that for warming up")
	return cmd
}

// workloads are the distributions of the requests' work.
var workloads = []struct {
	name string
	work func(mean time.Duration) balance.Work
}{{"uniform", balance.Uniform}, {"bimodal", balance.Bimodal}, {"skewed", balance.Skewed}}

// completion simulates all rounds with all workloads and all loads.
func completion(f balanceFlags, busy []float64, service, during time.Duration) []completionRow {
	rounds := f.rounds()
	rows := make([]completionRow, len(workloads)*len(busy)*len(rounds))
	each(len(rows), func(i int) {
		r, b, w := rounds[i%len(rounds)], busy[i/len(rounds)%len(busy)], workloads[i/len(rounds)/len(busy)]
		took := balance.Completion(r.scheduler, f.setup(r), w.work(service), service, b, during)
		ms := func(share float64) float64 {
			return float64(balance.Percentile(took, share).Milliseconds())
		}
		rows[i] = completionRow{Workload: w.name, Busy: b, Scheduler: r.scheduler, Refresh: r.refresh, Requests: len(took), P50: ms(0.5), P99: ms(0.99), round: r}
	})
	hash := 0.0
	for i := range rows {
		if rows[i].Scheduler == balance.Hash {
			hash = rows[i].P99 // the first of its load
		}
		if rows[i].P99 > 0 {
			rows[i].Better = rounded(hash/rows[i].P99, 2)
		}
	}
	return rows
}

func completionCells(r completionRow) []string {
	return []string{r.Workload, number(r.Busy), r.Scheduler, number(r.Refresh), fmt.Sprint(r.Requests), number(r.P50), number(r.P99), number(r.Better)}
}

// completionPanels returns a diagram of each workload.
func completionPanels(rows []completionRow) (panels []figure.Panel) {
	for _, w := range workloads {
		p := figure.Panel{Title: w.name + ": the slowest of a hundred requests", X: "share of their time that servers are busy", Y: "ms (99th percentile)", LogY: true}
		for _, r := range rows {
			if r.Workload == w.name {
				addPoint(&p, r.round.name(), r.Busy, r.P99)
			}
		}
		panels = append(panels, p)
	}
	return panels
}

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/figure"
	"github.com/shuntlb/shunt/internal/sim/balance"
)

// imbalanceRow is the distribution of connections over servers under one scheduler.
type imbalanceRow struct {
	Active    float64 `json:"active"`
	Scheduler string  `json:"scheduler"`
	Refresh   float64 `json:"refresh"` // 0: it does not use loads
	// Mean is the mean number of connections of a server. Beyond is how many more the fullest one
	// has.
	Mean   float64 `json:"mean"`
	Beyond float64 `json:"beyond"`
	// BeyondPct is Beyond in percent of the mean. Variance is between servers.
	BeyondPct float64 `json:"beyond_pct"`
	Variance  float64 `json:"variance"`
	// The values of plain hashing divided by these.
	BeyondBetter   float64 `json:"beyond_better"`
	VarianceBetter float64 `json:"variance_better"`

	round round
}

// newSimImbalance returns the command `shunt sim imbalance`.
func newSimImbalance(g *globals) *cobra.Command {
	var f balanceFlags
	var active []float64
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "imbalance",
		Short: "How evenly schedulers spread connections",
		Long: "How evenly schedulers spread active connections over servers of equal weight, while several muxes choose and hosts tell them loads now and then.\n\n" +
			"Connections begin at random and last exponentially distributed times. `beyond` is how many more than the mean the fullest server has, `variance` that of\n" +
			"the connections between servers, both averaged over the second of two lives. Schedulers that look at no loads have refresh 0.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, err := range []error{f.check(), within("active", active, 100, 1e7)} {
				if err != nil {
					return usageError{err}
				}
			}
			if life < 100*time.Millisecond || life > 10*time.Minute {
				return usageError{fmt.Errorf("--life: %s: must be 100ms to 10m", life)}
			}
			return simOutput[imbalanceRow]{
				rows: imbalance(f, active, life), cells: imbalanceCells, panels: imbalancePanels,
				heading: []string{"active", "scheduler", "refresh", "mean", "beyond", "beyond_pct", "variance", "beyond_better", "variance_better"},
			}.print(cmd, g, f.simFlags)
		},
	}
	f.register(cmd, 468)
	cmd.Flags().Float64SliceVar(&active, "active", []float64{20_000, 50_000, 100_000, 150_000, 200_000}, "active connections on average: 100 to 1e7")
	cmd.Flags().DurationVar(&life, "life", 30*time.Second, "how long connections last on average: 100ms to 10m")
	return cmd
}

// imbalance simulates all rounds with all numbers of connections.
func imbalance(f balanceFlags, active []float64, life time.Duration) []imbalanceRow {
	rounds := f.rounds()
	rows := make([]imbalanceRow, len(active)*len(rounds))
	each(len(rows), func(i int) {
		r := rounds[i%len(rounds)]
		s := balance.Imbalance(r.scheduler, f.setup(r), active[i/len(rounds)], life)
		rows[i] = imbalanceRow{
			Active: active[i/len(rounds)], Scheduler: r.scheduler, Refresh: r.refresh, Mean: rounded(s.Mean, 1), Beyond: rounded(s.Beyond, 2),
			BeyondPct: rounded(100*s.Beyond/s.Mean, 2), Variance: rounded(s.Variance, 2), round: r,
		}
	})
	hash := imbalanceRow{}
	for i := range rows {
		r := &rows[i]
		if r.Scheduler == balance.Hash {
			hash = *r // the first of its number of connections
		}
		r.BeyondBetter, r.VarianceBetter = rounded(hash.Beyond/r.Beyond, 1), rounded(hash.Variance/r.Variance, 1)
	}
	return rows
}

func imbalanceCells(r imbalanceRow) (out []string) {
	out = []string{number(r.Active), r.Scheduler}
	for _, v := range []float64{r.Refresh, r.Mean, r.Beyond, r.BeyondPct, r.Variance, r.BeyondBetter, r.VarianceBetter} {
		out = append(out, number(v))
	}
	return out
}

// imbalancePanels returns a diagram of the fullest server and one of the variance.
func imbalancePanels(rows []imbalanceRow) []figure.Panel {
	panels := []figure.Panel{
		{Title: "The fullest of the servers", X: "active connections", Y: "% above the mean", LogY: true},
		{Title: "Variance between servers", X: "active connections", Y: "connections squared", LogY: true},
	}
	for _, r := range rows {
		addPoint(&panels[0], r.round.name(), r.Active, r.BeyondPct)
		addPoint(&panels[1], r.round.name(), r.Active, r.Variance)
	}
	return panels
}

// addPoint adds a point to the line with a name.
func addPoint(p *figure.Panel, name string, x, y float64) {
	for i := range p.Lines {
		if l := &p.Lines[i]; l.Name == name {
			l.X, l.Y = append(l.X, x), append(l.Y, y)
			return
		}
	}
	p.Lines = append(p.Lines, figure.Line{Name: name, X: []float64{x}, Y: []float64{y}})
}

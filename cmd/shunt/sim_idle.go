package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/figure"
	"github.com/shuntlb/shunt/internal/sim"
)

// newSimIdle returns the command `shunt sim idle`.
func newSimIdle(g *globals) *cobra.Command {
	var f simFlags
	var idle []time.Duration
	var pushes int
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "What servers send after a silence, and when clients take it",
		Long: "Whether a client takes what its server sends after a silence, and after how many retransmissions: it drops segments whose timestamps are older than the last one\n" +
			"(PAWS), and timestamps carry cookies. The client makes no exception for old connections.\n\n" +
			"Encodings: cheetah-server (the authors' kernel for servers, with a memory for each connection), cheetah-balancer (their balancer, with a memory for each server, of a\n" +
			"server that is busy), shunt. The file and the plot have more silences than the table.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkIdle(idle, pushes); err != nil {
				return usageError{err}
			}
			return simOutput[sim.IdleRow]{
				rows: sim.PlayIdle(f.seed, sim.Silences(curvePoints, idle...), pushes), cells: idleCells, panels: idlePanels,
				brief: func(rows []sim.IdleRow) []sim.IdleRow {
					return slices.DeleteFunc(slices.Clone(rows), func(r sim.IdleRow) bool {
						return !slices.ContainsFunc(idle, func(d time.Duration) bool { return d.Seconds() == r.IdleS })
					})
				},
				heading: []string{"encoding", "idle_s", "pushes", "at_once", "lost", "at_once_pct", "median_s", "worst_s"},
			}.print(cmd, g, f)
		},
	}
	f.register(cmd)
	cmd.Flags().DurationSliceVar(&idle, "idle", []time.Duration{time.Second, 70 * time.Second, 700 * time.Second}, "silences of the table: 1ms to 240h")
	cmd.Flags().IntVar(&pushes, "pushes", 2000, "connections for each silence: 1 to 1000000")
	return cmd
}

// curvePoints is the number of silences on the curve, from 1 s to 1000 s.
const curvePoints = 200

// checkIdle refuses options that cannot be simulated.
func checkIdle(idle []time.Duration, pushes int) error {
	if len(idle) == 0 {
		return fmt.Errorf("--idle: must be one time at least")
	}
	for _, d := range idle {
		if d < time.Millisecond || d > 240*time.Hour {
			return fmt.Errorf("--idle: %s: must be 1ms to 240h", d)
		}
	}
	if pushes < 1 || pushes > 1_000_000 {
		return fmt.Errorf("--pushes: %d: must be 1 to 1000000", pushes)
	}
	return nil
}

func idleCells(r sim.IdleRow) []string {
	i := strconv.Itoa
	return []string{string(r.Encoding), number(r.IdleS), i(r.Pushes), i(r.AtOnce), i(r.Lost), number(r.AtOncePct), number(r.MedianS), number(r.WorstS)}
}

// idlePanels returns a diagram of the pushes that are delivered immediately, and one of the delay
// of the others.
func idlePanels(rows []sim.IdleRow) []figure.Panel {
	panel := func(title, unit string, of func(sim.IdleRow) float64) figure.Panel {
		p := figure.Panel{Title: title, X: "silence in seconds", Y: unit, LogX: true, Ticks: []figure.Tick{
			{At: 1, Label: "1"}, {At: 10, Label: "10"}, {At: 70, Label: "70"}, {At: 700, Label: "700"},
		}}
		for _, e := range sim.Encodings {
			l := figure.Line{Name: string(e)}
			for _, r := range rows {
				if r.Encoding == e {
					l.X, l.Y = append(l.X, r.IdleS), append(l.Y, of(r))
				}
			}
			p.Lines = append(p.Lines, l)
		}
		return p
	}
	return []figure.Panel{
		panel("a server speaks after a silence: what the client takes the first time", "% of the pushes", func(r sim.IdleRow) float64 { return r.AtOncePct }),
		panel("how long the slowest push takes, by retransmissions", "seconds", func(r sim.IdleRow) float64 { return r.WorstS }),
	}
}

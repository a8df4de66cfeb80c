package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/figure"
)

// newSim is `shunt sim`.
func newSim(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate what becomes of connections",
		Long: "Simulate what becomes of connections. A simulation needs neither root nor a network, and says the same again with the same seed.\n" +
			"Where Shunt has code for what is simulated, that code runs.",
	}
	cmd.AddCommand(newSimBroken(g), newSimForged(g), newSimIdle(g), newSimImbalance(g), newSimCompletion(g))
	return cmd
}

// simFlags are the flags of every simulation.
type simFlags struct {
	seed uint64
	out  string
}

// register adds them.
func (f *simFlags) register(cmd *cobra.Command) {
	cmd.Flags().Uint64Var(&f.seed, "seed", 1, "seed of everything that is random; it is printed")
	cmd.Flags().StringVar(&f.out, "out", "", "also write "+cmd.Name()+".csv and "+cmd.Name()+".png into this `directory`")
}

// simOutput is what a simulation found.
type simOutput[Row any] struct {
	rows    []Row
	heading []string
	cells   func(Row) []string
	panels  func([]Row) []figure.Panel
	// brief are the rows of the table on the screen; all when it is nil.
	brief func([]Row) []Row
}

// print writes what was found to the screen, and files when a directory was named.
func (o simOutput[Row]) print(cmd *cobra.Command, g *globals, f simFlags) error {
	cells := func(rows []Row) (out [][]string) {
		for _, r := range rows {
			out = append(out, o.cells(r))
		}
		return out
	}
	if f.out != "" {
		if err := os.MkdirAll(f.out, 0o755); err != nil {
			return err
		}
		if err := figure.WriteCSV(filepath.Join(f.out, cmd.Name()+".csv"), o.heading, cells(o.rows)); err != nil {
			return err
		}
		if err := figure.WritePNG(filepath.Join(f.out, cmd.Name()+".png"), o.panels(o.rows)...); err != nil {
			return err
		}
	}
	if g.format != formatTable {
		return g.format.encode(cmd.OutOrStdout(), struct {
			Simulation string `json:"simulation"`
			Seed       uint64 `json:"seed"`
			Rows       []Row  `json:"rows"`
		}{cmd.Name(), f.seed, o.rows})
	}
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "seed %d\n", f.seed); err != nil {
		return err
	}
	rows := o.rows
	if o.brief != nil {
		rows = o.brief(rows)
	}
	return table(cmd.OutOrStdout(), append([][]string{o.heading}, cells(rows)...))
}

// number writes a number with no more digits than it needs.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

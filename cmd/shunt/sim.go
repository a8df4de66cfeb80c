package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/figure"
)

// newSim returns the command `shunt sim`.
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

// simFlags holds the flags of every simulation.
type simFlags struct {
	seed uint64
	out  string
}

// register adds the flags.
func (f *simFlags) register(cmd *cobra.Command) {
	cmd.Flags().Uint64Var(&f.seed, "seed", 1, "seed of everything that is random; it is printed")
	cmd.Flags().StringVar(&f.out, "out", "", "also write "+cmd.Name()+".csv and "+cmd.Name()+".png into this `directory`")
}

// simOutput is the result of a simulation.
type simOutput[Row any] struct {
	rows    []Row
	heading []string
	cells   func(Row) []string
	panels  func([]Row) []figure.Panel
	// brief selects the rows of the table on the screen. nil means all rows.
	brief func([]Row) []Row
}

// print prints the result, and writes files if a directory is given.
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

// number formats a number with the fewest digits.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

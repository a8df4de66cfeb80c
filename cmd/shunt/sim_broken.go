package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/figure"
	"github.com/shuntlb/shunt/internal/sim"
)

// newSimBroken returns the command `shunt sim broken`.
func newSimBroken(g *globals) *cobra.Command {
	var f simFlags
	o := sim.BrokenOptions{}
	cmd := &cobra.Command{
		Use:   "broken",
		Short: "Connections that break while servers come and go",
		Long: "How many connections break while servers come and go, under several rules, when no mux remembers any. A server that comes is new; one that goes drains.\n\n" +
			"Two stories: churn, a large pool with one change a minute, whose connections last from the first change to the last; and 24-31-23, in which seven servers\n" +
			"come and eight go within a minute while connections come and go too.\n\n" +
			"Rules: modulo (the hash modulo the number of servers), maglev (the ring's present owner), previous-ring (and the owner in the ring before: a daisy chain of\n" +
			"one generation), last-owner (and the last owner that was another one: Shunt's repair, for connections without cookies), beamer (a table of buckets, each with\n" +
			"its server and the one before, in which a server that comes takes the buckets that changed the longest time ago), cheetah (cookies as its authors' program\n" +
			"makes them), shunt (Shunt's cookies, with one change of keys on the way).",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkBroken(o); err != nil {
				return usageError{err}
			}
			o.Seed = f.seed
			rows, err := sim.PlayBroken(o)
			if err != nil {
				return err
			}
			return simOutput[sim.BrokenRow]{
				rows: rows, cells: brokenCells, panels: brokenPanels, brief: lastBroken,
				heading: []string{"story", "rule", "change", "at_s", "servers", "open", "broken", "broken_pct"},
			}.print(cmd, g, f)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.IntVar(&o.Servers, "servers", 468, "servers in story churn before the first change: 2 to 4000")
	flags.IntVar(&o.Changes, "changes", 64, "changes in story churn: 1 to 500")
	flags.IntVar(&o.Connections, "connections", 50_000, "connections in each story: 1 to 1000000")
	flags.DurationVar(&o.Lasting, "lasting", 20*time.Second, "mean time that connections last in story 24-31-23: 1ms to 1h")
	return cmd
}

// checkBroken refuses options that cannot be simulated.
func checkBroken(o sim.BrokenOptions) error {
	for _, c := range []struct {
		flag               string
		value, least, most int
	}{{"servers", o.Servers, 2, 4000}, {"changes", o.Changes, 1, 500}, {"connections", o.Connections, 1, 1_000_000}} {
		if c.value < c.least || c.value > c.most {
			return fmt.Errorf("--%s: %d: must be %d to %d", c.flag, c.value, c.least, c.most)
		}
	}
	if o.Lasting < time.Millisecond || o.Lasting > time.Hour {
		return fmt.Errorf("--lasting: %s: must be 1ms to 1h", o.Lasting)
	}
	if o.Changes >= o.Servers-1 {
		return fmt.Errorf("--changes: %d: must leave a server of %d if all of them go", o.Changes, o.Servers)
	}
	return nil
}

func brokenCells(r sim.BrokenRow) []string {
	i := strconv.Itoa
	return []string{r.Story, string(r.Rule), i(r.Change), number(r.AtS), i(r.Servers), i(r.Open), i(r.Broken), number(r.BrokenPct)}
}

// lastBroken returns the last row of each story and rule.
func lastBroken(rows []sim.BrokenRow) (out []sim.BrokenRow) {
	for i, r := range rows {
		if i+1 == len(rows) || rows[i+1].Story != r.Story || rows[i+1].Rule != r.Rule {
			out = append(out, r)
		}
	}
	return out
}

// brokenTop is the upper end of the diagrams, in percent. Modulo lies above it nearly everywhere,
// and is in the table.
const brokenTop = 20

// brokenPanels returns a diagram of each story.
func brokenPanels(rows []sim.BrokenRow) (panels []figure.Panel) {
	at := map[string]int{}
	for _, r := range rows {
		n, known := at[r.Story]
		if !known {
			n = len(panels)
			at[r.Story] = n
			p := figure.Panel{Title: r.Story + ": connections broken since the beginning", X: "changes of the pool", Y: "% of the connections", MaxY: brokenTop}
			if r.Story == sim.Scaling().Name {
				p.X = "seconds: 24 servers, 31 from 28.6 s, 23 from 38.9 s"
			}
			panels = append(panels, p)
		}
		p := &panels[n]
		if last := len(p.Lines) - 1; last < 0 || p.Lines[last].Name != string(r.Rule) {
			p.Lines = append(p.Lines, figure.Line{Name: string(r.Rule)})
		}
		l, x := &p.Lines[len(p.Lines)-1], float64(r.Change)
		if r.Story == sim.Scaling().Name {
			x = r.AtS
		}
		l.X, l.Y = append(l.X, x), append(l.Y, r.BrokenPct)
	}
	return panels
}

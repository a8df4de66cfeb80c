package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/figure"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/sim"
)

// newSimForged returns the command `shunt sim forged`.
func newSimForged(g *globals) *cobra.Command {
	var f simFlags
	var servers []int
	var tries int
	cmd := &cobra.Command{
		Use:   "forged",
		Short: "Forged cookies that are accepted, and that reach a chosen server",
		Long: "How many forged cookies and connection ids are accepted, and how many lead to the server that the attacker wants.\n\n" +
			"Schemes: cheetah (cookies as its authors' FastClick element reads them: the server's index XOR a hash of the connection, 15 bits, modulo the size of its table,\n" +
			"256 by default), cheetah-p4 (as their P4 programs do: 16 bits, which must be a server's index exactly), shunt (Shunt's cookies), quiclb and quiclb-plain (connection ids of QUIC, under AES and in clear).\n\n" +
			"Forgeries: random; of an attacker who has one of its own and knows its server: flip-one (one bit changed, for the server to which that led most often when as many\n" +
			"were tried before), flip-to (the difference between its server's id and the wanted one's), replay (the same on another connection, as QUIC's clients do when they\n" +
			"move). The attacker knows which key is in use. No scheme of as many bits accepts less than ideal_pct of random ones.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkForged(servers, tries); err != nil {
				return usageError{err}
			}
			return simOutput[sim.ForgedRow]{
				rows: sim.PlayForged(f.seed, servers, tries), cells: forgedCells, panels: forgedPanels,
				heading: []string{"scheme", "forgery", "servers", "tries", "accepted", "chosen", "accepted_pct", "chosen_pct", "ideal_pct"},
			}.print(cmd, g, f)
		},
	}
	f.register(cmd)
	cmd.Flags().IntSliceVar(&servers, "servers", []int{10, 100, 1000}, fmt.Sprintf("sizes of the pool: 2 to %d; connection ids up to %d", lb.MaxCookieMembers, lb.MaxCIDMembers))
	cmd.Flags().IntVar(&tries, "tries", 1_000_000, "cookies of each kind: 1 to 100000000")
	return cmd
}

// checkForged refuses options that cannot be simulated.
func checkForged(servers []int, tries int) error {
	if len(servers) == 0 {
		return fmt.Errorf("--servers: must be one size at least")
	}
	for _, n := range servers {
		if n < 2 || n > lb.MaxCookieMembers {
			return fmt.Errorf("--servers: %d: must be 2 to %d", n, lb.MaxCookieMembers)
		}
	}
	if tries < 1 || tries > 100_000_000 {
		return fmt.Errorf("--tries: %d: must be 1 to 100000000", tries)
	}
	return nil
}

func forgedCells(r sim.ForgedRow) []string {
	i := strconv.Itoa
	return []string{string(r.Scheme), string(r.Forgery), i(r.Servers), i(r.Tries), i(r.Accepted), i(r.Chosen), number(r.AcceptedPct), number(r.ChosenPct), number(r.IdealPct)}
}

// forgedPanels returns diagrams of the forgeries that are accepted and of those that reach the
// chosen server, for cookies and for connection ids.
func forgedPanels(rows []sim.ForgedRow) (panels []figure.Panel) {
	for _, what := range []struct {
		name    string
		schemes []sim.Rule
	}{{"cookies", []sim.Rule{sim.Published, sim.PublishedExact, sim.Cookies}}, {"connection ids", []sim.Rule{sim.PlainCID, sim.QUICLB}}} {
		panel := func(title string, of func(sim.ForgedRow) float64) figure.Panel {
			p := figure.Panel{Title: "forged " + what.name + " that " + title, X: "servers", Y: "% of them", LogX: true, LogY: true}
			for _, scheme := range what.schemes {
				for _, forgery := range sim.Forgeries {
					l := figure.Line{Name: fmt.Sprintf("%s, %s", scheme, forgery)}
					for _, r := range rows {
						if r.Scheme == scheme && r.Forgery == forgery && of(r) > 0 {
							l.X, l.Y = append(l.X, float64(r.Servers)), append(l.Y, of(r))
						}
					}
					if len(l.X) > 0 {
						p.Lines = append(p.Lines, l)
					}
				}
			}
			return p
		}
		panels = append(panels,
			panel("are accepted", func(r sim.ForgedRow) float64 { return r.AcceptedPct }),
			panel("reach the chosen server", func(r sim.ForgedRow) float64 { return r.ChosenPct }))
	}
	return panels
}

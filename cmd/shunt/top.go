package main

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/top"
)

type topFlags struct {
	interval   time.Duration
	once       bool
	node, sort string
}

// newTop returns the command `shunt top`.
func newTop(g *globals) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top [VIEW]",
		Short: "Watch rates live: by service, backend, reason or node",
		Long: "Top shows packets and bits per second, summed over the muxes, from the counters that they report each second.\n" +
			"VIEW is services (the default), backends, reasons or nodes.\n\n" +
			"Keys: 1 to 4 or tab switch views, s orders by the next column, p pauses, arrows scroll, q quits. With --once, -o\n" +
			"json or yaml, or when the output is no terminal, it prints one table, of the rates over --interval, and ends.",
		Example: "  shunt top\n" +
			"  shunt top reasons --once\n" +
			"  shunt top -o json --interval 5s",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("takes at most one VIEW, not %d arguments", len(args))
			}
			return nil
		},
		ValidArgs: top.Views,
		RunE: func(cmd *cobra.Command, args []string) error {
			view := top.Services
			if len(args) > 0 {
				var ok bool
				if view, ok = top.ParseView(args[0]); !ok {
					return usagef("VIEW: %q: must be one of %s%s", args[0], strings.Join(top.Views, ", "), lb.MeantFor(args[0], top.Views))
				}
			}
			if f.interval < time.Second {
				return usagef("--interval: %v: must be at least 1s: nodes report each second", f.interval)
			}
			c, err := g.connect()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if f.once || g.format != formatTable || !isTerminal(out) {
				return f.print(cmd.Context(), g, c, out, view)
			}
			return top.NewScreen(cmd.Context(), f.ask(c), f.interval, view).Run(cmd.InOrStdin(), out)
		},
	}
	fl := cmd.Flags()
	fl.DurationVar(&f.interval, "interval", 2*time.Second, "time over which rates are taken, at least 1s")
	fl.BoolVar(&f.once, "once", false, "print one table and end")
	fl.StringVar(&f.node, "node", "", "only this node")
	fl.StringVar(&f.sort, "sort", "", "column to order by, with --once (default: the busiest first)")
	return cmd
}

// ask reads the nodes' reports. It explains errors.
func (f *topFlags) ask(c *client) top.Ask {
	return func(ctx context.Context) (*apiv1.StatusResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		response, err := c.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Node: f.node}))
		if err != nil {
			return nil, c.explain(err)
		}
		for _, n := range response.Msg.GetNodes() {
			classify(n)
		}
		return response.Msg, nil
	}
}

// classify sets the classes of reasons that a node of an older build does not send.
func classify(n *apiv1.NodeStatus) {
	for _, r := range n.GetReasons() {
		if r.Class == "" {
			r.Class = string(dataplane.ClassOf(n.GetRole(), r.GetReason()))
		}
	}
}

// print prints the rates of one interval.
func (f *topFlags) print(ctx context.Context, g *globals, c *client, out io.Writer, view top.View) error {
	columns := top.Rates{}.Table(view, "")[0]
	sort := strings.ToUpper(f.sort)
	if sort != "" && !slices.Contains(columns, sort) {
		return usagef("--sort: %q: must be one of %s", f.sort, strings.ToLower(strings.Join(columns, ", ")))
	}
	before, err := f.ask(c)(ctx)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(f.interval):
	}
	now, err := f.ask(c)(ctx)
	if err != nil {
		return err
	}
	rates := top.Between(before, now)
	if g.format != formatTable {
		return g.format.encode(out, rates)
	}
	return table(out, rates.Table(view, sort))
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

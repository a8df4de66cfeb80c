package main

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/snat"
)

// releaseFlags holds the flags of release.
type releaseFlags struct {
	// keep is how many ports each server may keep.
	keep  uint32
	force bool
}

func newRelease(g *globals) *cobra.Command {
	var f releaseFlags
	cmd := &cobra.Command{
		Use:   "release SERVICE [DIP]",
		Short: "Take ports for outbound connections back from servers of a service",
		Long: "Release takes ports of a service's VIP back from its servers (snat), or from one: all but --keep, of which servers keep those\n" +
			"that they used last. Ports without connections go back within half a minute. Others take no new connection and go back when\n" +
			"the last one has ended. With --force all are taken at once, and connections that have them break. Servers ask for ports again\n" +
			"when they need some: quotas.snatPortsPerDip of the Tenant bounds how many. See docs/ops/snat.md.",
		Example: "  shunt release out 10.20.1.11\n" +
			"  shunt release out --keep 64",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usagef("needs SERVICE and at most one DIP")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.keep%snat.RangePorts != 0 {
				return usagef("--keep: %d: must be a multiple of 8, the ports of a range", f.keep)
			}
			request := &apiv1.ReleaseSNATRequest{Service: args[0], Keep: f.keep, Force: f.force}
			if len(args) == 2 {
				request.Dip = args[1]
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				response, err := c.ReleaseSNAT(ctx, connect.NewRequest(request))
				if err != nil {
					return err
				}
				return printReleased(g, cmd, response.Msg.GetReleased())
			})
		},
	}
	cmd.Flags().Uint32Var(&f.keep, "keep", 0, "how many ports each server may keep, a multiple of 8")
	cmd.Flags().BoolVar(&f.force, "force", false, "take ports at once, with the connections that have them")
	return cmd
}

// printReleased prints how many ports each server gives back.
func printReleased(g *globals, cmd *cobra.Command, released []*apiv1.ReleasedSNAT) error {
	if g.format != formatTable {
		texts, err := rawJSONs(released)
		if err != nil {
			return err
		}
		return g.format.encode(cmd.OutOrStdout(), texts)
	}
	rows := [][]string{{"VIP", "DIP", "PORTS"}}
	for _, r := range released {
		rows = append(rows, []string{r.GetVip(), r.GetDip(), fmt.Sprint(r.GetPorts())})
	}
	return table(cmd.OutOrStdout(), rows)
}

package main

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

func newRotateRing(g *globals) *cobra.Command {
	var all, yes bool
	cmd := &cobra.Command{
		Use:   "ring VIP|SERVICE… | --all",
		Short: "Replace the keys that rings of VIPs are asked with",
		Long: "Rotate ring gives VIPs new ring hash keys. A host has the keys of the VIPs that it serves: rotate these after it was captured.\n\n" +
			"The key decides the backend of flows that nothing else remembers. Flows in flow tables and sessions, and packets with cookies or\n" +
			"connection ids, stay. Connections of TCP endpoints that no mux remembers, as with affinity hash, are sent to their former\n" +
			"backends by the hosts, for the endpoint's repairWindow. Where hosts cannot do that (UDP, repairWindow 0s, rewrite none, or another\n" +
			"change within the window) connections with affinity hash break, and --yes is needed. It refuses while a connected mux or host runs\n" +
			"a build that does not follow.",
		Example: "  shunt rotate ring 203.0.113.10\n  shunt rotate ring web api --yes\n  shunt rotate ring --all",
		Args:    func(_ *cobra.Command, args []string) error { return scopesOrAll(args, all) },
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return g.names(cmd.Context(), lb.KindService), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				res, err := c.RotateRing(ctx, connect.NewRequest(&apiv1.RotateRingRequest{Scopes: args, All: all, Force: yes}))
				if err != nil {
					return err
				}
				return g.printRing(cmd.OutOrStdout(), res.Msg)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all VIPs")
	cmd.Flags().BoolVar(&yes, "yes", false, "also of endpoints with affinity hash whose connections break")
	return cmd
}

func (g *globals) printRing(w io.Writer, res *apiv1.RotateRingResponse) error {
	if g.format != formatTable {
		return g.format.encode(w, map[string]any{"revision": res.GetRevision(), "endpoints": res.GetEndpoints(), "moved": append([]string{}, res.GetMoved()...)})
	}
	if _, err := fmt.Fprintf(w, "new ring keys: %d endpoints\n", res.GetEndpoints()); err != nil {
		return err
	}
	for _, name := range res.GetMoved() {
		if _, err := fmt.Fprintf(w, "connections moved: %s\n", name); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"net/netip"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// newDrain makes drain, or undrain when on is false.
func newDrain(g *globals, on bool) *cobra.Command {
	verb, short := "drain", "Take new traffic away from a node or a backend"
	nodeShort, backendShort := "Withdraw a mux's routes, gracefully", "Give a backend no new flows"
	if !on {
		verb, short = "undrain", "Give new traffic to a drained node or backend again"
		nodeShort, backendShort = "Let a mux advertise its routes again", "Give a backend new flows again"
	}
	cmd := &cobra.Command{
		Use:     verb + " node NAME | backend SERVICE DIP[:PORT]",
		Short:   short,
		Example: fmt.Sprintf("  shunt %[1]s node mux1\n  shunt %[1]s backend web 10.20.1.11\n  shunt %[1]s backend web '[2001:db8:20:1::11]:8080'", verb),
	}
	cmd.AddCommand(&cobra.Command{
		Use: "node NAME", Short: nodeShort, Args: needs("NAME"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return g.names(cmd.Context(), lb.KindNode), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.modify(cmd, lb.KindNode, args[0], func(o lb.Object) error {
				o.(*lb.Node).Drain = on
				return nil
			})
		},
	})
	cmd.AddCommand(&cobra.Command{
		Use: "backend SERVICE DIP[:PORT]", Short: backendShort, Args: needs("SERVICE", "DIP[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseBackend(args[1])
			if err != nil {
				return err
			}
			return g.modify(cmd, lb.KindService, args[0], func(o lb.Object) error {
				return drainBackend(o.(*lb.Service), key, on)
			})
		},
	})
	return cmd
}

// modifyAttempts bounds how often modify starts over because others changed the object in between.
const modifyAttempts = 16

// modify reads an object, changes it, and applies it if nobody changed it since; else it starts over.
func (g *globals) modify(cmd *cobra.Command, kind lb.Kind, name string, change func(lb.Object) error) error {
	return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
		for attempt := 1; ; attempt++ {
			objects, err := c.fetch(ctx, kind, name)
			if err != nil {
				return err
			}
			object, err := domainObject(objects[0])
			if err != nil {
				return err
			}
			if err := change(object); err != nil {
				return err
			}
			request := &apiv1.ApplyRequest{Objects: wireObjects([]lb.Object{object})}
			request.Objects[0].Revision = objects[0].GetRevision()
			response, err := c.Apply(ctx, connect.NewRequest(request))
			if connect.CodeOf(err) == connect.CodeAborted && attempt < modifyAttempts {
				continue
			}
			if err != nil {
				return err
			}
			return g.printChanges(cmd.OutOrStdout(), response.Msg.GetRevision(), response.Msg.GetChanges(), false)
		}
	})
}

// drainBackend sets the drain of a backend in every endpoint that has it. Port 0 means every port.
func drainBackend(s *lb.Service, key lb.BackendKey, on bool) error {
	found := false
	for i := range s.Endpoints {
		for j := range s.Endpoints[i].Backends {
			b := &s.Endpoints[i].Backends[j]
			for _, dip := range b.DIPs {
				if dip == key.DIP && (key.Port == 0 || key.Port == b.Port) {
					b.Drain, found = on, true
				}
			}
		}
	}
	if found {
		return nil
	}
	what := key.DIP.String()
	if key.Port != 0 {
		what = netip.AddrPortFrom(key.DIP, key.Port).String()
	}
	return fmt.Errorf("%s: backend %s: must be a backend of the service", lb.Ref(lb.KindService, s.Name), what)
}

// parseBackend reads DIP or DIP:PORT; the port is 0 when there is none.
func parseBackend(s string) (lb.BackendKey, error) {
	if a, allowed := lb.ParseAddr(s); allowed == "" {
		return lb.BackendKey{DIP: a}, nil
	}
	p, err := netip.ParseAddrPort(s)
	if err != nil || p.Port() == 0 {
		return lb.BackendKey{}, usagef("backend: %q: must be DIP or DIP:PORT, an IPv6 address with a port in brackets", s)
	}
	return lb.BackendKey{DIP: p.Addr(), Port: p.Port()}, nil
}

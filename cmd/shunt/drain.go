package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

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
			_, err := g.modify(cmd, lb.KindNode, args[0], func(o lb.Object) error {
				o.(*lb.Node).Drain = on
				return nil
			})
			return err
		},
	})
	cmd.AddCommand(newDrainBackend(g, on, backendShort))
	return cmd
}

func newDrainBackend(g *globals, on bool, short string) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "backend SERVICE DIP[:PORT]", Short: short, Args: needs("SERVICE", "DIP[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseBackend(args[1])
			if err != nil {
				return err
			}
			w := drainWatch{service: args[0], tell: func(format string, args ...any) error {
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), format, args...)
				return err
			}}
			w.revision, err = g.modify(cmd, lb.KindService, args[0], func(o lb.Object) error {
				w.backends = drainedBackends(o.(*lb.Service), key)
				return drainBackend(o.(*lb.Service), key, on)
			})
			if err != nil || !wait {
				return err
			}
			return g.waitDrained(cmd.Context(), w)
		},
	}
	if on {
		cmd.Long = "Drain backend gives a backend no new flows, in all endpoints of the service. Flows that muxes remember stay with it,\n" +
			"for at most the endpoint's drainTimeout if it has one: then the backend loses its place, and what is left is given\n" +
			"up. Flows of endpoints with affinity hash are not remembered and move at once."
		cmd.Flags().BoolVar(&wait, "wait", false, "wait until no mux counts a flow of it, or the limit has passed")
	}
	return cmd
}

// modifyAttempts bounds how often modify starts over because others changed the object in between.
const modifyAttempts = 16

// modify reads an object, changes it, and applies it if nobody changed it since; else it starts over. It returns the
// revision of the change.
func (g *globals) modify(cmd *cobra.Command, kind lb.Kind, name string, change func(lb.Object) error) (revision int64, err error) {
	err = g.call(cmd.Context(), func(ctx context.Context, c *client) error {
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
			revision = response.Msg.GetRevision()
			return g.printChanges(cmd.OutOrStdout(), revision, response.Msg.GetChanges(), false)
		}
	})
	return revision, err
}

// drainBackend sets the drain of a backend in every endpoint that has it. Port 0 means every port.
func drainBackend(s *lb.Service, key lb.BackendKey, on bool) error {
	found := false
	for i := range s.Endpoints {
		for j := range s.Endpoints[i].Backends {
			if b := &s.Endpoints[i].Backends[j]; isBackend(b, key) {
				b.Drain, found = on, true
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

// isBackend tells whether the key names the backend. Port 0 means every port.
func isBackend(b *lb.Backend, key lb.BackendKey) bool {
	return slices.Contains(b.DIPs, key.DIP) && (key.Port == 0 || key.Port == b.Port)
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

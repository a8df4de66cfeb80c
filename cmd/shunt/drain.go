package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// newDrain returns the drain command, or undrain when on is false.
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
	cmd.Long = "What is drained so stays drained whatever files are applied, until undrain gives it back: the field belongs to the\nsource drain. What a file drains belongs to the file."
	cmd.AddCommand(newDrainNode(g, on, nodeShort), newDrainBackend(g, on, backendShort))
	return cmd
}

func newDrainNode(g *globals, on bool, short string) *cobra.Command {
	var wait drainWait
	edit := &drainEdit{on: on}
	cmd := &cobra.Command{
		Use: "node NAME", Short: short, Args: needs("NAME"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return g.names(cmd.Context(), lb.KindNode), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wait.check(); err != nil {
				return err
			}
			if wait.on {
				if err := g.announces(cmd.Context(), args[0]); err != nil {
					return err
				}
			}
			revision, err := g.drain(cmd, lb.KindNode, args[0], edit)
			if err != nil || !wait.on {
				return err
			}
			w := nodeWatch{node: args[0], revision: revision, tell: teller(cmd)}
			return g.waitFor(cmd.Context(), wait, args[0], func(status func() (*apiv1.StatusResponse, error), pause func() error) error {
				w.status, w.pause = status, pause
				return w.wait()
			})
		},
	}
	edit.register(cmd)
	if on {
		cmd.Long = "Drain node lets a mux withdraw its routes, gracefully: routers send its packets to other muxes, and their connections go on\n" +
			"there. What its own flow table remembers is of no use any more. With --wait the command ends when the mux obeys and\n" +
			"announces no VIP."
		wait.register(cmd, "wait until the mux announces no VIP")
	}
	return cmd
}

// teller prints progress on the command's standard error.
func teller(cmd *cobra.Command) func(format string, args ...any) error {
	return func(format string, args ...any) error {
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), format, args...)
		return err
	}
}

func newDrainBackend(g *globals, on bool, short string) *cobra.Command {
	var wait drainWait
	edit := &drainEdit{on: on}
	cmd := &cobra.Command{
		Use: "backend SERVICE DIP[:PORT]", Short: short, Args: needs("SERVICE", "DIP[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := wait.check()
			if err != nil {
				return err
			}
			if edit.key, err = parseBackend(args[1]); err != nil {
				return err
			}
			w := drainWatch{service: args[0], tell: teller(cmd)}
			w.revision, err = g.drain(cmd, lb.KindService, args[0], edit)
			w.backends = edit.members
			if err != nil || !wait.on {
				return err
			}
			return g.waitFor(cmd.Context(), wait, "", func(status func() (*apiv1.StatusResponse, error), pause func() error) error {
				w.status, w.pause = status, pause
				return w.wait()
			})
		},
	}
	edit.register(cmd)
	if on {
		cmd.Long = "Drain backend gives a backend no new flows, in all endpoints of the service. Flows that muxes remember stay with it,\n" +
			"for at most the endpoint's drainTimeout if it has one: then the backend loses its place, and what is left is given\n" +
			"up. TCP connections that muxes do not remember, with affinity hash all, are sent on to it by hosts, for the endpoint's\n" +
			"repairWindow; other flows that are not remembered move at once."
		wait.register(cmd, "wait until no mux counts a flow of it, or the limit has passed")
	}
	return cmd
}

// parseBackend reads DIP or DIP:PORT. The port is 0 if it is absent.
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

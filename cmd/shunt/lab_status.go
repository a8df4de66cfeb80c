package main

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/lab"
)

// newLabStatus returns the command `shunt lab status`.
func newLabStatus(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a lab's nodes, processes, synced revisions, BGP sessions and routes to VIPs",
		Args:  cobra.NoArgs,
	}
	name := labName(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := lab.Open(*name, lab.Options{})
		if err != nil {
			return err
		}
		s, err := l.Status(cmd.Context())
		if err != nil {
			return err
		}
		if g.format != formatTable {
			return g.format.encode(cmd.OutOrStdout(), s)
		}
		return printLabStatus(cmd.OutOrStdout(), s)
	}
	return cmd
}

func printLabStatus(w io.Writer, s lab.Status) error {
	state := "up"
	if !s.Complete {
		state = "half-made"
	}
	fmt.Fprintf(w, "lab %s: %s, manager at revision %d\n", s.Name, state, s.Revision)
	if s.Error != "" {
		fmt.Fprintf(w, "manager: %s\n", s.Error)
	}
	rows := [][]string{{"NODE", "NAMESPACE", "ADDRESSES", "PROCESSES", "SYNCED", "BGP"}}
	for _, n := range s.Nodes {
		rows = append(rows, []string{n.Name, namespaceCell(n), strings.Join(addressStrings(n.Addresses), " "), processCell(n), syncedCell(n), sessionCell(n)})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	for _, r := range s.Routes {
		fmt.Fprintf(w, "route %s via %s\n", r.Prefix, strings.Join(addressStrings(r.Via), " "))
	}
	return nil
}

func namespaceCell(n lab.NodeStatus) string {
	if !n.Exists {
		return n.Namespace + " (missing)"
	}
	return n.Namespace
}

func addressStrings(addresses []netip.Addr) []string {
	parts := make([]string, len(addresses))
	for i, a := range addresses {
		parts[i] = a.String()
	}
	return parts
}

func processCell(n lab.NodeStatus) string {
	var parts []string
	for _, p := range n.Processes {
		if p.Alive {
			parts = append(parts, fmt.Sprintf("%s(%d)", p.Name, p.Pid))
		} else {
			parts = append(parts, p.Name+"(dead)")
		}
	}
	return strings.Join(parts, " ")
}

func syncedCell(n lab.NodeStatus) string {
	switch {
	case n.Agent == nil:
		return ""
	case !n.Agent.Connected:
		return "not connected"
	case n.Agent.Error != "":
		return n.Agent.Error
	}
	return strconv.FormatInt(n.Agent.Synced, 10)
}

// sessionCell counts the established sessions and names the others.
func sessionCell(n lab.NodeStatus) string {
	if len(n.Sessions) == 0 {
		return ""
	}
	established := 0
	var others []string
	for _, s := range n.Sessions {
		if s.State == "established" {
			established++
		} else {
			others = append(others, s.Peer+" "+s.State)
		}
	}
	cell := fmt.Sprintf("%d/%d established", established, len(n.Sessions))
	if len(others) > 0 {
		cell += " (" + strings.Join(others, ", ") + ")"
	}
	return cell
}

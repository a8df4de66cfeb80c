package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/doctor"
)

func newDoctor(g *globals) *cobra.Command { return newDoctorOf(g, doctor.Local{}) }

// newDoctorOf makes the command for any machine, so that tests can make one up.
func newDoctorOf(g *globals, machine doctor.Machine) *cobra.Command {
	var o doctor.Options
	var role string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine can be a mux or a host",
		Long: "Doctor checks kernel, BPF, capabilities, interface, MTU, forwarding and reverse-path filter, and prints for each\n" +
			"fault the command that cures it. It changes nothing. The exit code is 1 when a check fails; warnings do not count.",
		Example: "  shunt doctor --role mux --interface eth0\n" +
			"  shunt doctor --role host --mtu 9000 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Role = doctor.Role(role)
			if o.Role != doctor.Mux && o.Role != doctor.Host {
				return usagef("--role: %q: must be mux or host", role)
			}
			if o.MTU < 1280 || o.MTU > 9216 {
				return usagef("--mtu: %d: must be 1280 to 9216", o.MTU)
			}
			results := doctor.Run(machine, o)
			if err := g.printResults(cmd, results); err != nil {
				return err
			}
			if doctor.Failed(results) {
				return errSilent
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&role, "role", string(doctor.Mux), "what the machine shall be: mux or host")
	cmd.Flags().StringVar(&o.Interface, "interface", "eth0", "interface of the underlay")
	cmd.Flags().IntVar(&o.MTU, "mtu", 1500, "MTU of the underlay in bytes, as in the Network")
	return cmd
}

// printResults prints a line per check, and below it the cure of what is wrong.
func (g *globals) printResults(cmd *cobra.Command, results []doctor.Result) error {
	w := cmd.OutOrStdout()
	if g.format != formatTable {
		return g.format.encode(w, results)
	}
	width := 0
	for _, r := range results {
		width = max(width, len(r.Check))
	}
	for _, r := range results {
		if _, err := fmt.Fprintf(w, "%-4s  %-*s  %s\n", r.Status, width, r.Check, r.Found); err != nil {
			return err
		}
		if r.Cure == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-4s  %-*s  cure: %s\n", "", width, "", r.Cure); err != nil {
			return err
		}
	}
	return nil
}

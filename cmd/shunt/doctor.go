package main

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/doctor"
	"github.com/shuntlb/shunt/internal/lb"
)

func newDoctor(g *globals) *cobra.Command { return newDoctorOf(g, doctor.Local{}) }

// newDoctorOf returns the command for any machine, so that tests can pass a fake one.
func newDoctorOf(g *globals, machine doctor.Machine) *cobra.Command {
	var o doctor.Options
	var role, encap string
	var vips, sources []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine can be a mux, a host or a plain server",
		Long: "Doctor checks kernel, BPF, capabilities, interface, MTU, forwarding and reverse-path filter, and prints for each\n" +
			"fault the command that cures it. Of a server without a host agent (rewrite: none) it checks the tunnel devices, the\n" +
			"VIPs, reverse-path filter, ARP and the MSS that it advertises. It changes nothing. The exit code is 1 when a check\n" +
			"fails; warnings do not count.",
		Example: "  shunt doctor --role mux --interface eth0\n" +
			"  shunt doctor --role host --mtu 9000 -o json\n" +
			"  shunt doctor --role server --vip 203.0.113.10,2001:db8:f::10",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Role = doctor.Role(role)
			if o.Role != doctor.Mux && o.Role != doctor.Host && o.Role != doctor.Server {
				return usagef("--role: %q: must be mux, host or server", role)
			}
			if err := serverOptions(cmd, &o, vips, sources, encap); err != nil {
				return err
			}
			if o.MTU < 1280 || o.MTU > 9216 {
				return usagef("--mtu: %d: must be 1280 to 9216", o.MTU)
			}
			if o.State == "" {
				o.State = map[doctor.Role]string{doctor.Mux: defaultMuxState, doctor.Host: defaultHostState}[o.Role]
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
	cmd.Flags().StringVar(&role, "role", string(doctor.Mux), "what the machine shall be: mux, host or server")
	cmd.Flags().StringVar(&o.Interface, "interface", "eth0", "interface of the underlay")
	cmd.Flags().IntVar(&o.MTU, "mtu", 1500, "MTU of the underlay in bytes, as in the Network")
	cmd.Flags().StringVar(&o.State, "state", "", "state `directory` of the agent (default: /var/lib/shunt/mux or /var/lib/shunt/host)")
	cmd.Flags().StringSliceVar(&vips, "vip", nil, "of a server: the VIPs that it shall have (default: those on its loopback)")
	cmd.Flags().StringSliceVar(&o.Tunnels, "tunnel", nil, "of a server: the devices that take packets out of tunnels (default: all of kind ipip, sit and ip6tnl)")
	cmd.Flags().StringSliceVar(&sources, "tunnel-sources", []string{lb.DefaultTunnelSourcesV4, lb.DefaultTunnelSourcesV6}, "of a server: as in the Network")
	cmd.Flags().StringVar(&encap, "encap", lb.EncapIPIP, "of a server: the tunnel of its endpoints, ipip or gue")
	return cmd
}

// serverOptions reads the flags that only servers have.
func serverOptions(cmd *cobra.Command, o *doctor.Options, vips, sources []string, encap string) error {
	for _, name := range []string{"vip", "tunnel", "tunnel-sources", "encap"} {
		if o.Role != doctor.Server && cmd.Flags().Changed(name) {
			return usagef("--%s: must come with --role server", name)
		}
	}
	for _, text := range vips {
		vip, err := netip.ParseAddr(text)
		if err != nil || vip.Zone() != "" || vip.Is4In6() {
			return usagef("--vip: %q: must be an IPv4 or IPv6 address", text)
		}
		if slices.Contains(o.VIPs, vip) {
			return usagef("--vip: %q: is given twice", text)
		}
		o.VIPs = append(o.VIPs, vip)
	}
	for _, text := range sources {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return usagef("--tunnel-sources: %q: must be a prefix such as %s", text, lb.DefaultTunnelSourcesV4)
		}
		o.TunnelSources = append(o.TunnelSources, p)
	}
	if encap != lb.EncapIPIP && encap != lb.EncapGUE {
		return usagef("--encap: %q: must be %s or %s", encap, lb.EncapIPIP, lb.EncapGUE)
	}
	o.GUE = encap == lb.EncapGUE
	return nil
}

// printResults prints a line per check, and the fix below each failed check.
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

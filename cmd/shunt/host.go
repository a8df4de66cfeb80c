package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/host"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/metrics"
)

// defaultHostState is the default of --state.
const defaultHostState = "/var/lib/shunt/host"

// managerUsage is the help text of --manager for all nodes.
const managerUsage = "`address:port` of the managers, separated by commas: some of them, in any order; the others the node learns"

// checkManagers refuses a --manager value with an address that cannot be dialed.
func checkManagers(value string) error {
	all, err := agent.ParseManagers(value)
	if err != nil || slices.ContainsFunc(all, func(a string) bool { return !canDial(a) }) {
		return usagef("--manager: %q: must be ADDRESS:PORT, or several of them separated by commas, the ports 1 to 65535", value)
	}
	return nil
}

// newHost returns the command `shunt host`: the agent of a server.
func newHost() *cobra.Command {
	var o host.Options
	var stop, verbose bool
	var guard, place, checked string
	var served metricsFlags
	var programs programFlags
	var probes, flows uint64
	cmd := &cobra.Command{
		Use:   "host",
		Short: "Run the agent of a server: decapsulation, translation, direct return",
		Long: "Run the agent of a server. It attaches two tcx programs to the interface by which tunnel packets come in and\n" +
			"answers leave. They stay attached when the agent ends, and the next one takes them over without losing a\n" +
			"packet; --stop takes them away. So it is with a third one, on each device that servers are behind, which sees what\n" +
			"they send. Checks with engine packet have a fourth one there, as long as the agent runs.\n\n" +
			"Servers behind this machine need its forwarding (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding); the agent\n" +
			"tells what is missing and changes nothing.",
		Example: "  shunt host --interface eth0 --manager 10.99.0.11:8443 --token-file /etc/shunt/host1.token\n" +
			"  shunt host --stop      # detach the programs and forget all flows",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("check-program") {
				return checkProgram(cmd.OutOrStdout(), checked, o.BPFFS, dataplane.CheckHostProgram)
			}
			if stop {
				noteNoPins(cmd.ErrOrStderr(), o.BPFFS)
				if err := host.Stop(o.BPFFS, o.RunDir); err != nil {
					return err
				}
				noteLeft(cmd.ErrOrStderr(), o.BPFFS)
				return nil
			}
			if err := hostFlags(&o, &served, &programs, flows); err != nil {
				return err
			}
			if err := checkMaxProbes(probes); err != nil {
				return err
			}
			o.MaxProbes = uint32(probes)
			var err error
			if o.Guard, err = dataplane.ParseHostGuard(guard); err != nil {
				return usagef("--guard: %v", err)
			}
			if place != "first" && place != "last" {
				return usagef("--tcx: %q: must be first or last", place)
			}
			o.Last = place == "last"
			o.Node.Version, o.Node.Commit = version, commit()
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			o.Node.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			scrapes, err := metrics.Listen(served.address)
			if err != nil {
				return err
			}
			if scrapes != nil {
				defer scrapes.Close()
			}
			o.Node.Progress = &agent.Progress{}
			o.Beside = func(ctx context.Context, a *host.Agent) error {
				registry, err := metrics.NewHost(metrics.Node{Name: o.Node.Name, Build: thisBuild(), Status: a.Status, Progress: o.Node.Progress, Probes: a.Probes, Starts: countStart(o.RunDir, o.Node.Log)})
				if err != nil {
					return err
				}
				return served.serve(ctx, scrapes, registry)
			}
			return host.Run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Interface, "interface", "", "uplink `device`: tunnel packets come in and answers leave by it")
	f.StringVar(&o.Node.Manager, "manager", "", managerUsage)
	f.StringVar(&o.Node.TokenFile, "token-file", "", "file with the join token; needed until the node has joined")
	f.StringVar(&o.Node.Name, "name", "", "name of this node (default: the host's name)")
	f.StringVar(&o.Node.StateDir, "state", defaultHostState, "directory of key, certificate and last plan")
	f.StringVar(&o.RunDir, "run", "/run/shunt/host", "directory of the lock that keeps a second agent out")
	f.StringVar(&o.BPFFS, "bpffs", "/sys/fs/bpf/shunt/host", "directory for the pins of programs and maps, on a bpf file system")
	f.StringVar(&o.LoadSocket, "load-socket", "", "`path` of the socket by which applications of this machine say their load (default: load.sock in --run)")
	f.DurationVar(&o.LoadInterval, "load-interval", load.SampleEvery, "`time` between two looks at the load of servers, which muxes then choose by: 10ms to 10s")
	served.add(f)
	f.BoolVarP(&verbose, "verbose", "v", false, verboseUsage)
	f.Uint64Var(&probes, "max-probes", host.DefaultMaxProbes, maxProbesUsage)
	f.Uint64Var(&flows, "flows", uint64(dataplane.DefaultHostFlows), "room for flows, 104 bytes each: a power of two from 8192 (8 Ki) to 8388608 (8 Mi). Another size than before takes over the flows there are")
	f.StringVar(&guard, "guard", "networks", "`mode` of guarding against servers behind devices: networks (nothing from VIPs and addresses of the Networks that are not theirs, no tunnels to the underlay), strict (nor from any other address that is not reached by their device) or off")
	f.StringVar(&place, "tcx", "first", "`place` of the programs among those of others that a device has when they come to it: first or last. They keep it until they are detached")
	programs.register(f)
	f.BoolVar(&stop, "stop", false, "detach the programs and forget all flows; the agent must have ended")
	f.StringVar(&checked, "check-program", "", checkProgramUsage)
	cmd.MarkFlagsMutuallyExclusive("stop", "check-program")
	return cmd
}

// hostFlags checks the flags and sets the default name.
func hostFlags(o *host.Options, served *metricsFlags, programs *programFlags, flows uint64) error {
	if o.Interface == "" {
		return usagef(`--interface: "": must be a device of this machine`)
	}
	if err := checkManagers(o.Node.Manager); err != nil {
		return err
	}
	if err := served.check(); err != nil {
		return err
	}
	if err := checkDirectories([2]string{"--state", o.Node.StateDir}, [2]string{"--run", o.RunDir}, [2]string{"--bpffs", o.BPFFS}); err != nil {
		return err
	}
	if flows&(flows-1) != 0 || flows < uint64(dataplane.MinHostFlows) || flows > uint64(dataplane.MaxHostFlows) {
		return usagef("--flows: %d: must be a power of two from %d to %d", flows, dataplane.MinHostFlows, dataplane.MaxHostFlows)
	}
	if n := len(o.LoadSocket); n > host.MaxSocketPath {
		return usagef("--load-socket: %d bytes: must be a path of at most %d", n, host.MaxSocketPath)
	}
	if o.LoadInterval < load.MinSample || o.LoadInterval > load.MaxSample {
		return usagef("--load-interval: %s: must be %s to %s", o.LoadInterval, load.MinSample, load.MaxSample)
	}
	o.Flows = uint32(flows)
	var err error
	if o.Programs, err = programs.programs(); err != nil {
		return err
	}
	if o.Node.Name != "" {
		return nil
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("--name: read hostname: %w", err)
	}
	o.Node.Name = name
	return nil
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/bgp/remote"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lock"
	"github.com/shuntlb/shunt/internal/metrics"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/means"
	"github.com/shuntlb/shunt/internal/service"
)

// Defaults of the mux's flags.
const (
	defaultMuxState    = "/var/lib/shunt/mux"
	defaultMuxRun      = "/run/shunt/mux"
	defaultMuxPins     = "/sys/fs/bpf/shunt/mux"
	defaultSpeakerHold = 30 * time.Second
	defaultDrainWait   = 2 * time.Second
	defaultLinger      = 5 * time.Second
	defaultSweep       = 30 * time.Second
)

// snatFile in the state directory names the VIPs with SNAT.
const snatFile = "snat-vips"

// maxSuspectGrace bounds how long unresponsive servers may receive traffic.
const maxSuspectGrace = time.Hour

type muxFlags struct {
	ifaces                        []string
	manager, tokenFile, name      string
	state, run, bpffs, xdpMode    string
	metrics                       metricsFlags
	hold, drainWait, linger       time.Duration
	sweep, suspectGrace           time.Duration
	drain, undrain, stop, verbose bool
	sizes                         muxSizes
	programs                      programFlags
	// locks are those of the network namespace and the run directory.
	locks []*lock.File
	// created, if not nil, gets the agent before it starts. If it is nil, this process is a
	// separate daemon and notifies its service manager.
	created func(*mux.Agent)
}

// newMux returns the command `shunt mux`.
func newMux() *cobra.Command {
	var f muxFlags
	var checked string
	cmd := &cobra.Command{
		Use:   "mux",
		Short: "Run a mux: spread connections by XDP, check backends, speak BGP",
		Long: `Run a mux: it takes its plan from the manager, forwards by XDP, checks the backends and announces the VIPs.

The agent may be restarted at any time: packets and routes do not notice. Routes are kept by a second process,
which withdraws them when the program is detached or the agent stays away for longer than --speaker-hold; under
systemd the agent's unit needs KillMode=process. An agent of another build, or with other table sizes, takes over under
traffic: it fills new tables from its last plan while the old program forwards, with health, counters and remembered flows,
then replaces the program in one step. Tables that it cannot read it refuses, and the old program goes on. To take a mux out of service use --drain or --stop.`,
		Example: `  shunt mux --interface eth0 --manager 10.99.0.11:8443 --token-file /etc/shunt/mux1.token
  shunt mux --drain      # withdraw the routes, gracefully, and wait
  shunt mux --stop       # the same, then detach the program and end the agent
  shunt mux --check-program /usr/local/bin/shunt.former    # before an upgrade or the way back: can that build take over?`,
		Args: cobra.NoArgs,
	}
	fl := cmd.Flags()
	f.register(cmd)
	fl.StringVar(&f.manager, "manager", "", managerUsage)
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the join token; needed until the node has joined")
	fl.BoolVar(&f.drain, "drain", false, "ask the running agent to withdraw its routes, gracefully, and wait; it stays so until --undrain or the next boot")
	fl.BoolVar(&f.undrain, "undrain", false, "ask the running agent to announce again")
	fl.BoolVar(&f.stop, "stop", false, "ask the running agent to drain, detach the program, remove its pins and end")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, verboseUsage)
	fl.StringVar(&checked, "check-program", "", checkProgramUsage)
	cmd.MarkFlagsMutuallyExclusive("drain", "undrain", "stop", "check-program")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case cmd.Flags().Changed("check-program"):
			return checkProgram(cmd.OutOrStdout(), checked, f.bpffs, dataplane.CheckMuxProgram)
		case f.drain:
			return mux.Ask(cmd.Context(), f.run, "drain")
		case f.undrain:
			return mux.Ask(cmd.Context(), f.run, "undrain")
		case f.stop:
			return stopMux(cmd.Context(), f, cmd.ErrOrStderr())
		}
		return runMux(cmd.Context(), f, cmd.ErrOrStderr())
	}
	return cmd
}

// register adds the flags for the mux's operation on its machine.
func (f *muxFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringArrayVar(&f.ifaces, "interface", nil, "`device` that packets come in by; may be given several times, a bond stands for its slaves")
	fl.StringVar(&f.name, "name", "", "name of this node (default: the host's name)")
	fl.StringVar(&f.state, "state", defaultMuxState, "directory of certificate, last plan and last health")
	fl.StringVar(&f.run, "run", defaultMuxRun, "directory of sockets and of local decisions, until the next boot")
	fl.StringVar(&f.bpffs, "bpffs", defaultMuxPins, "directory for the program's pins, on a bpf file system")
	fl.StringVar(&f.xdpMode, "xdp-mode", string(dataplane.XDPNative), "where the program runs: native (in the driver) or generic (any device, slow)")
	fl.DurationVar(&f.hold, "speaker-hold", defaultSpeakerHold, "how long routes stay while the agent is away")
	fl.DurationVar(&f.drainWait, "drain-wait", defaultDrainWait, "how long routers get to move the traffic away before routes are withdrawn")
	fl.DurationVar(&f.linger, "linger", defaultLinger, "how long a VIP that moves away or is deleted is still forwarded after its routes were withdrawn; 0: not at all")
	f.metrics.add(fl)
	fl.DurationVar(&f.sweep, "sweep-interval", defaultSweep, "how often idle flows are forgotten and the others counted; every second while a draining backend has flows or a shared table is a quarter full")
	fl.DurationVar(&f.suspectGrace, "suspect-grace", health.DefaultGrace, "how long a mux that suspects itself keeps its last verdicts on servers that fell silent; 0: not at all")
	f.programs.register(fl)
	f.sizes.flags(cmd)
}

// grace returns mux.Options.Grace, where 0 selects the default.
func (f *muxFlags) grace() time.Duration { return cmp.Or(f.suspectGrace, -1) }

func (f *muxFlags) check() error {
	if len(f.ifaces) == 0 || slices.Contains(f.ifaces, "") {
		return usagef(`--interface: "": must be a device of this machine`)
	}
	if err := checkManagers(f.manager); err != nil {
		return err
	}
	if err := f.metrics.check(); err != nil {
		return err
	}
	if err := checkDirectories([2]string{"--state", f.state}, [2]string{"--run", f.run}, [2]string{"--bpffs", f.bpffs}); err != nil {
		return err
	}
	switch dataplane.XDPMode(f.xdpMode) {
	case dataplane.XDPNative, dataplane.XDPGeneric:
	default:
		return usagef("--xdp-mode: %q: must be native or generic", f.xdpMode)
	}
	for _, c := range []struct {
		flag string
		d    time.Duration
	}{{"--speaker-hold", f.hold}, {"--drain-wait", f.drainWait}, {"--sweep-interval", f.sweep}} {
		if c.d <= 0 {
			return usagef("%s: %v: must be above 0", c.flag, c.d)
		}
	}
	if f.linger < 0 {
		return usagef("--linger: %v: must be 0 or longer", f.linger)
	}
	if f.suspectGrace < 0 || f.suspectGrace > maxSuspectGrace {
		return usagef("--suspect-grace: %v: must be 0 to %v", f.suspectGrace, maxSuspectGrace)
	}
	if _, err := f.programs.programs(); err != nil {
		return err
	}
	if err := f.sizes.check(); err != nil {
		return err
	}
	if f.name == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--name: not given, and the host's name is unknown: %w", err)
		}
		f.name = name
	}
	return nil
}

// stopMux stops the agent. Without an agent it removes the objects that the agent left behind.
func stopMux(ctx context.Context, f muxFlags, stderr io.Writer) error {
	err := mux.Ask(ctx, f.run, "stop")
	if !errors.Is(err, mux.ErrNoAgent) {
		if err == nil {
			noteLeft(stderr, f.bpffs)
		}
		return err
	}
	client := remote.NewClient(f.run)
	if _, err := client.Status(ctx); err == nil {
		if err := client.Stop(ctx); err != nil {
			return err
		}
	}
	noteNoPins(stderr, f.bpffs)
	if err := dataplane.DetachMux(f.bpffs); err != nil {
		return err
	}
	noteLeft(stderr, f.bpffs)
	return nil
}

func runMux(ctx context.Context, f muxFlags, stderr io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	device, arrivals, err := muxDevices(f.ifaces)
	if err != nil {
		return err
	}
	own, err := mux.Lock(f.run)
	if err != nil {
		return err
	}
	defer own.Close()
	namespace, err := lock.Namespace("mux")
	if err != nil {
		return err
	}
	defer namespace.Close()
	scrapes, err := metrics.Listen(f.metrics.address)
	if err != nil {
		return err
	}
	if scrapes != nil {
		defer scrapes.Close()
	}
	before, err := dataplane.MuxAttached(f.bpffs)
	if err != nil {
		return err
	}
	tables, err := dataplane.OpenMux(dataplane.MuxOptions{
		Ifindex: arrivals[0].Index, Others: indices(arrivals[1:]), BPFFS: f.bpffs, Mode: dataplane.XDPMode(f.xdpMode),
		Redirect: slices.ContainsFunc(arrivals, func(d netdev.Interface) bool { return d.Driver == "veth" }), Limits: f.sizes.limits(), Log: log,
	})
	if err != nil {
		return fmt.Errorf("--interface: %s, driver %s: %w", device.Name, device.Driver, err)
	}
	defer tables.Close()
	if mode := netdev.XDPMode(device.Name); mode != "" && mode != f.xdpMode {
		log.Warn("the program keeps the mode it was attached in; shunt mux --stop takes it off", "attached", mode, "--xdp-mode", f.xdpMode)
	}
	f.locks = []*lock.File{namespace, own}
	served, err := serveMux(ctx, f, device, append(indices(arrivals), device.Index), tables, scrapes, log)
	if err != nil && !served && !before {
		// The agent never had a plan, for example because its token was refused.
		err = errors.Join(err, dataplane.DetachMux(f.bpffs))
	}
	return err
}

// serveMux runs all parts of the agent until ctx ends, one of them fails, or --stop is requested.
// served reports whether the agent had a plan. on lists the interfaces that packets arrive on.
func serveMux(ctx context.Context, f muxFlags, device netdev.Interface, on []int, tables *dataplane.Mux, scrapes net.Listener, log *slog.Logger) (served bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("find own program: %w", err)
	}
	client := remote.NewClient(f.run)
	supervisor := &remote.Supervisor{
		Client: client, Log: log,
		Command: []string{self, "mux-speaker", "--run", f.run, "--bpffs", f.bpffs, "--hold", f.hold.String()},
	}
	programs, err := f.programs.programs()
	if err != nil {
		return false, err
	}
	var a *mux.Agent
	packets := newMuxPackets(tables, on, device.Addresses, log)
	prober, err := means.New(means.Options{
		Clock: clock.System{}, Programs: programs, Packets: packets.open, Report: func(r []probe.Result) { a.Probed(r) },
	})
	if err != nil {
		return false, err
	}
	defer prober.Close()
	hops := netdev.NewNextHops()
	leases := mux.NewLeases(tables, clock.System{})
	if err := leases.Remember(filepath.Join(f.state, snatFile)); err != nil {
		return false, err
	}
	a, err = mux.New(mux.Options{
		Tables: tables, Ring: mux.BuildRing, Prober: prober, Hops: hops, Speaker: client, Ensure: supervisor.Ensure,
		Clock: clock.System{}, RunDir: f.run, Locks: f.locks, DrainWait: f.drainWait, Linger: f.linger, Grace: f.grace(),
		Watch:     func(f dataplane.WatchFilter) (mux.Watcher, error) { return tables.Watch(f) },
		Links:     func() []agent.Link { return agent.LinksOf(f.ifaces...) },
		Addresses: device.Addresses, ReadFile: (&secretFiles{log: log}).read, Sources: packets.asker.SetTunnelSources, Leases: leases, Log: log,
		Build: bgp.Process{Version: version, Commit: commit()}, Replace: supervisor.Replace,
	})
	if err != nil {
		return false, err
	}
	tended := func() error { <-ctx.Done(); return nil }
	if f.created != nil {
		f.created(a)
	} else {
		tended = func() error { return tellMux(ctx, a, log) }
	}
	progress := &agent.Progress{}
	registry, err := muxMetrics(f, a, tables, progress, prober.Stats, log)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := func() error {
		ending, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		return errors.Join(client.Stop(ending), dataplane.DetachMux(f.bpffs))
	}
	err = together(cancel,
		func() error { a.Run(ctx); return nil },
		func() error { a.SweepFlows(ctx, f.sweep); return nil },
		func() error { a.Schedule(ctx); return nil },
		func() error { a.Linger(ctx); return nil },
		func() error { a.FollowLeases(ctx); return nil },
		func() error { return hops.Run(ctx, a.HopsChanged) },
		func() error { return packets.run(ctx) },
		func() error { return watchCarriers(ctx, cancel, f.ifaces, a.LinkChanged) },
		func() error { a.Tend(ctx, func() (string, error) { return tend(f.ifaces, tables) }); return nil },
		func() error { return a.Control(ctx, stop) },
		func() error { return f.metrics.serve(ctx, scrapes, registry) },
		tended,
		func() error {
			return agent.Run(ctx, agent.Options{
				Name: f.name, Role: "mux", Manager: f.manager, TokenFile: f.tokenFile, StateDir: f.state,
				Version: version, Commit: commit(), Notify: a.Changed(), Heard: a.Heard, HeardLoads: a.HeardLoads, Suspicion: a, Leases: leases, Progress: progress, Log: log,
			}, a)
		},
	)
	return a.Served(), err
}

// tellMux notifies the service manager when the agent has applied a plan, and then that it is
// alive, until ctx ends.
func tellMux(ctx context.Context, a *mux.Agent, log *slog.Logger) error {
	select {
	case <-a.Ready():
	case <-ctx.Done():
		return nil
	}
	if err := service.Ready("forwards"); err != nil {
		log.Warn("cannot tell the service manager", "error", err)
	}
	return service.Watchdog(ctx, func(context.Context) error { a.Served(); return nil }, func(err error) { log.Error("is not well", "error", err) })
}

// together runs all parts, cancels them when one ends, and waits for the rest.
func together(cancel func(), parts ...func() error) error {
	var wait sync.WaitGroup
	errs := make([]error, len(parts))
	for i, part := range parts {
		wait.Go(func() {
			errs[i] = part()
			cancel()
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

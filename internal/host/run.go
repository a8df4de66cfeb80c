package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/load"
	machine "github.com/shuntlb/shunt/internal/lock"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/means"
	"github.com/shuntlb/shunt/internal/snat"
)

// Options are the settings of Run.
type Options struct {
	// Node identifies the node; Role and Quiet are set by Run.
	Node agent.Options
	// Interface is the uplink: tunnel packets arrive and answers leave by it.
	Interface string
	// BPFFS is the directory of the pins, on a bpf file system, with no other use.
	BPFFS string
	// Flows is the size of the flow table, as in dataplane.HostOptions.
	Flows uint32
	// Guard limits the packets that servers behind devices may send.
	Guard dataplane.HostGuard
	// Last attaches programs after those of others, as in dataplane.HostOptions.
	Last bool
	// RunDir holds a lock that excludes a second agent.
	RunDir string
	// MaxProbes is how many targets the tables of packet checks have room for, a multiple of 64; 0:
	// DefaultMaxProbes. Sockets probe the others.
	MaxProbes uint32
	// LoadSocket is the path of the socket on which applications report their load; empty: in
	// RunDir.
	LoadSocket string
	// LoadInterval is the time between two load samples, from load.MinSample to load.MaxSample; 0:
	// load.SampleEvery.
	LoadInterval time.Duration
	// Programs are the settings of external checks.
	Programs means.Programs
	// Beside, if not nil, runs next to the agent until ctx ends; its error ends the agent.
	Beside func(ctx context.Context, a *Agent) error
}

// lockName is the file in the run directory that a running agent holds.
const lockName = "agent.lock"

// Run attaches the programs and applies plans to them until ctx ends. The programs stay attached,
// with their flow state, and the next Run takes them over without losing a packet. If the agent
// fails before it has a plan, for example for lack of a valid token, it detaches the programs that
// it attached itself.
func Run(ctx context.Context, o Options) error {
	own, err := lockRunDir(o.RunDir)
	if err != nil {
		return err
	}
	defer own.Close()
	namespace, err := machine.Namespace("host")
	if err != nil {
		return err
	}
	defer namespace.Close()
	pins, err := os.ReadDir(o.BPFFS)
	pins = slices.DeleteFunc(pins, func(e os.DirEntry) bool { return dataplane.IsForeignPin(e.Name()) })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for pins: %w", err)
	}
	var served atomic.Bool
	err = run(ctx, o, []*machine.File{namespace, own}, &served)
	if err != nil && !served.Load() && len(pins) == 0 {
		err = errors.Join(err, dataplane.DetachHost(o.BPFFS))
	}
	return err
}

// run is Run with the locks held, which it maintains. served becomes true when a plan arrives.
func run(ctx context.Context, o Options, locks []*machine.File, served *atomic.Bool) error {
	dev, err := netdev.FindInterface(o.Interface)
	if err != nil {
		return err
	}
	if dev.MAC == [6]byte{} {
		return fmt.Errorf("interface %s: it has no Ethernet address: not supported by this version", o.Interface)
	}
	tables, err := dataplane.OpenHost(dataplane.HostOptions{Ifindex: dev.Index, Dir: o.BPFFS, Flows: o.Flows, Last: o.Last, Log: o.Node.Log})
	if err != nil {
		return err
	}
	o.Node.Role, o.Node.Quiet = "host", true
	if o.Node.Log == nil {
		o.Node.Log = slog.New(slog.DiscardHandler)
	}
	o.Node.Log.Info("programs attached", "interface", o.Interface, "pins", o.BPFFS)
	var h *Agent
	asking := means.Options{Clock: clock.System{}, Programs: o.Programs, Report: func(r []probe.Result) { h.Probed(r) }}
	packets := openPackets(tables, cmp.Or(o.MaxProbes, DefaultMaxProbes), o.Interface, clock.System{}, o.Node.Log)
	if packets != nil {
		defer packets.close()
		asking.Packets = packets.open
	}
	prober, err := means.New(asking)
	if err != nil {
		return errors.Join(err, tables.Close())
	}
	defer prober.Close()
	h = New(tables, thisMachine(o.Interface), prober, clock.System{}, o.Node.Log)
	h.guard, h.served = o.Guard, served
	h.loads.lookEvery(cmp.Or(o.LoadInterval, load.SampleEvery))
	h.servers = newServers(tables, func() ([]int, error) { return uplinkDevices(o.Interface) }, clock.System{}, o.Node.Log)
	o.Node.Verdicts, o.Node.Loads = h.checks, h.loads
	h.outbound = newOutbound(tables, dev.Index, clock.System{}, o.Node.Log)
	h.outbound.opens = h.servers.opens
	h.openings = openOpenings(tables, h.machine, o.Node.Log)
	leases := NewLeases(h.outbound, snat.DefaultStockRules, clock.System{}, o.Node.Log)
	o.Node.Leases, h.leases = leases, leases
	socket, err := openLoadSocket(cmp.Or(o.LoadSocket, filepath.Join(o.RunDir, loadSocketName)), h.loads.given, o.Node.Log, locks)
	if err != nil {
		return errors.Join(err, tables.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var besideErr, packetsErr, serversErr, socketErr error
	wg.Go(func() { expire(ctx, h) })
	tending := &tender{
		uplink: func() (int, error) { return uplinkIndex(o.Interface) }, tend: tables.Tend, moved: h.outbound.uplinkReplaced, report: h.setUplinkFault,
		clock: clock.System{}, log: o.Node.Log, ifindex: dev.Index,
	}
	wg.Go(func() { tending.run(ctx) })
	wg.Go(func() { h.sweep(ctx) })
	wg.Go(func() { h.openings.run(ctx) })
	wg.Go(func() { leases.Run(ctx) })
	wg.Go(func() { h.outbound.run(ctx) })
	wg.Go(func() { watch(ctx, h) })
	wg.Go(func() { watchAnswers(ctx, h) })
	wg.Go(func() { h.loads.run(ctx) })
	wg.Go(func() { newLoadAsker(h.loads.given, clock.System{}, o.Node.Log).run(ctx) })
	wg.Go(func() {
		if socketErr = socket.serve(ctx); socketErr != nil {
			stop()
		}
	})
	wg.Go(func() {
		if serversErr = h.servers.run(ctx); serversErr != nil {
			stop()
		}
	})
	wg.Go(func() { h.respreadAll(ctx) })
	if packets != nil {
		wg.Go(func() {
			if packetsErr = packets.run(ctx); packetsErr != nil {
				stop()
			}
		})
	}
	if o.Beside != nil {
		wg.Go(func() {
			besideErr = o.Beside(ctx, h)
			stop()
		})
	}
	err = agent.Run(ctx, o.Node, h)
	stop()
	wg.Wait()
	return errors.Join(err, besideErr, packetsErr, serversErr, socketErr, h.openings.close(), tables.Close())
}

// expire removes expired bindings and retries withheld VIPs until ctx ends.
func expire(ctx context.Context, h *Agent) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.clock.After(linger / 2):
		}
		if err := h.Expire(); err != nil {
			h.log.Error("take out bindings", "error", err)
		}
		if err := h.Refit(); err != nil {
			h.log.Error("look for room", "error", err)
		}
	}
}

// Stop detaches the programs and removes their pins, flow state included. The agent must not be
// running.
func Stop(bpffs, runDir string) error {
	own, err := lockRunDir(runDir)
	if err != nil {
		return err
	}
	defer own.Close()
	return dataplane.DetachHost(bpffs)
}

// thisMachine returns the machine, and network namespace, of the process.
func thisMachine(uplink string) Machine {
	return Machine{
		Interface: uplink,
		Sysctl:    func(key string) (string, error) { return netdev.ReadSysctl("", key) },
		Addresses: ownAddresses,
		Devices:   netdev.RouteDevices,
		Links:     func() []agent.Link { return agent.LinksOf(uplink) },
	}
}

func ownAddresses() ([]netip.Addr, error) {
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var addrs []netip.Addr
	for _, n := range nets {
		if p, err := netip.ParsePrefix(n.String()); err == nil {
			addrs = append(addrs, p.Addr().Unmap())
		}
	}
	return addrs, nil
}

// lockRunDir locks the run directory against a second agent. The kernel releases the lock with the
// process.
func lockRunDir(dir string) (*machine.File, error) {
	own, err := machine.Take(filepath.Join(dir, lockName))
	if errors.Is(err, machine.ErrTaken) {
		return nil, fmt.Errorf("a host agent runs with this run directory: end it first: %w", err)
	}
	return own, err
}

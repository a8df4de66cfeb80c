package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/packet"
)

// DefaultMaxProbes takes 1.6 MiB of the kernel's memory.
const DefaultMaxProbes = 1 << 13

// attachAgain is how long until devices are tried again that took no program.
const attachAgain = 15 * time.Second

// packets lets checks be made by packets: of servers behind devices of their own, which have the program that takes the answers while a
// way leads there. What is on the machine itself, or behind the uplink, is not: sockets ask it.
type packets struct {
	tables dataplane.HostProbeTables
	sender packet.Sender
	// uplinks are the devices that frames of the uplink leave by: they are no servers'.
	uplinks func() ([]int, error)
	clock   clock.Clock
	log     *slog.Logger
	hops    *netdev.NextHops
	asker   *packet.Asker

	// mu guards what follows.
	mu     sync.Mutex
	ways   netdev.Ways // as they were told last
	on     []int       // devices that have the program
	fault  string      // of those that should, logged already
	missed bool        // there are such
}

func newPackets(tables dataplane.HostProbeTables, sender packet.Sender, uplinks func() ([]int, error), c clock.Clock, log *slog.Logger) *packets {
	return &packets{tables: tables, sender: sender, uplinks: uplinks, clock: c, log: log, hops: netdev.NewNextHops()}
}

// openPackets makes what packets of a host need; nil when this machine cannot have it, which is logged: sockets make all checks then.
func openPackets(tables *dataplane.Host, rules uint32, uplink string, c clock.Clock, log *slog.Logger) *packets {
	probes, err := tables.OpenProbes(rules)
	if err != nil {
		log.Warn(noPackets, "error", err)
		return nil
	}
	sender, err := packet.NewSender()
	if err != nil {
		log.Warn(noPackets, "error", errors.Join(err, probes.Close()))
		return nil
	}
	return newPackets(probes, sender, func() ([]int, error) { return uplinkDevices(uplink) }, c, log)
}

const noPackets = "no checks by packets: sockets make them"

// uplinkDevices are an interface and, of a bond, its slaves.
func uplinkDevices(name string) ([]int, error) {
	dev, err := netdev.FindInterface(name)
	if err != nil {
		return nil, err
	}
	all, err := netdev.Slaves(name)
	if err != nil {
		return nil, err
	}
	out := []int{dev.Index}
	for _, s := range all {
		out = append(out, s.Index)
	}
	return out, nil
}

// open makes the asker, once, which closes the sender.
func (p *packets) open(answered func([]probe.Answer)) (probe.Asker, error) {
	asker, err := packet.New(packet.Options{Tables: p.tables, Sender: p.sender, Want: p.hops.Want, Report: answered})
	if err != nil {
		return nil, fmt.Errorf("probes by packets: %w", err)
	}
	p.asker = asker
	return asker, nil
}

// run follows the ways to servers, and the devices that they lead out of, until ctx ends.
func (p *packets) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var again sync.WaitGroup
	again.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.clock.After(attachAgain):
			}
			p.retry()
		}
	})
	err := p.hops.Follow(ctx, p.changed)
	stop()
	again.Wait()
	return err
}

// close takes the program off all devices. The asker must be closed.
func (p *packets) close() error { return p.tables.Close() }

// changed takes other ways.
func (p *packets) changed(ways netdev.Ways) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ways = ways
	p.followLocked()
}

// retry tries devices again that took no program.
func (p *packets) retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missed {
		p.followLocked()
	}
}

// followLocked puts the program where servers are, before anybody is asked by these ways.
func (p *packets) followLocked() {
	uplinks, err := p.uplinks()
	var want []int
	if err == nil {
		want = serverDevices(p.ways, uplinks)
	}
	on, followed := p.tables.Follow(want)
	p.missed = err != nil || !slices.Equal(on, want)
	p.tellLocked(on, errors.Join(err, followed))
	p.asker.HopsChanged(byServerDevices(p.ways, on))
}

// tellLocked logs what became of the devices, once.
func (p *packets) tellLocked(on []int, err error) {
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	if fault != "" && fault != p.fault {
		p.log.Warn("checks by packets: sockets make those of some devices", "error", err)
	}
	p.fault = fault
	if !slices.Equal(on, p.on) {
		p.log.Info("checks by packets", "devices", strings.Join(deviceNames(on), ", "))
	}
	p.on = on
}

// deviceNames are names of devices, for people; of those that went meanwhile their indices.
func deviceNames(devices []int) []string {
	names := make([]string, 0, len(devices))
	for _, ifindex := range devices {
		name := strconv.Itoa(ifindex)
		if i, err := net.InterfaceByIndex(ifindex); err == nil {
			name = i.Name
		}
		names = append(names, name)
	}
	return names
}

// serverDevices are the devices in order that ways lead out of as they do to servers behind this machine: Ethernet, no tag, no uplink.
func serverDevices(ways netdev.Ways, uplinks []int) (out []int) {
	for _, w := range ways.Hops() {
		if w.Ifindex > 0 && w.Tag == 0 && w.Own != [6]byte{} && !slices.Contains(uplinks, w.Ifindex) {
			out = append(out, w.Ifindex)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// elsewhere stands for a device that has no program.
const elsewhere = -1

// byServerDevices are ways of which those that do not lead out of one of these devices lead elsewhere, where the tables have no rules:
// who is behind them is asked by sockets at once.
func byServerDevices(ways netdev.Ways, on []int) netdev.Ways {
	known := ways.Map()
	for to, w := range known {
		if w.Ifindex != 0 && (w.Tag != 0 || !slices.Contains(on, w.Ifindex)) {
			known[to] = netdev.NextHop{Ifindex: elsewhere, Source: anySource(to), Resolved: true}
		}
	}
	return netdev.WaysOf(known)
}

// anySource is an address of the family of another.
func anySource(to netip.Addr) netip.Addr {
	if to.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

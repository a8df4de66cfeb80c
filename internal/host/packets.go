package host

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/packet"
)

// DefaultMaxProbes is the default of Options.MaxProbes. It takes 1.6 MiB of the kernel's memory.
const DefaultMaxProbes = 1 << 13

// packets makes checks by packets for servers behind devices of their own. The program that
// receives the answers is attached to these devices while a way leads there. Sockets probe all
// other servers.
type packets struct {
	*devices
	tables dataplane.HostProbeTables
	sender packet.Sender
	asker  *packet.Asker
}

func newPackets(tables dataplane.HostProbeTables, sender packet.Sender, uplinks func() ([]int, error), c clock.Clock, log *slog.Logger) *packets {
	p := &packets{tables: tables, sender: sender}
	p.devices = &devices{
		uplinks: uplinks, put: p.put, clock: c, log: log, hops: netdev.NewNextHops(),
		has: "checks by packets", lacks: "checks by packets: sockets make those of some devices",
	}
	return p
}

// openPackets opens the packet checks of a host. If this machine does not support them, it logs the
// reason and returns nil, and sockets make all checks.
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

// open makes the prober, which closes the sender. It is called once.
func (p *packets) open(answered func([]probe.Answer)) (probe.Asker, error) {
	asker, err := packet.New(packet.Options{Tables: p.tables, Sender: p.sender, Want: p.hops.Want, Report: answered})
	if err != nil {
		return nil, fmt.Errorf("probes by packets: %w", err)
	}
	p.asker = asker
	return asker, nil
}

// close detaches the program from all devices. The prober must be closed.
func (p *packets) close() error { return p.tables.Close() }

// put attaches the program to devices, before probes use these ways.
func (p *packets) put(ways netdev.Ways, want []int) (on []int, err error) {
	on, err = p.tables.Follow(want)
	p.asker.HopsChanged(byServerDevices(ways, on))
	return on, err
}

// elsewhere is the index of a nonexistent device, which has no program.
const elsewhere = -1

// byServerDevices returns ways in which those that do not use one of these devices use elsewhere,
// for which the tables have no rules. So sockets probe the servers behind them immediately.
func byServerDevices(ways netdev.Ways, on []int) netdev.Ways {
	known := ways.Map()
	for to, w := range known {
		if w.Ifindex != 0 && (w.Tag != 0 || !slices.Contains(on, w.Ifindex)) {
			known[to] = netdev.NextHop{Ifindex: elsewhere, Source: anySource(to), Resolved: true}
		}
	}
	return netdev.WaysOf(known)
}

// anySource returns the unspecified address of the same family.
func anySource(to netip.Addr) netip.Addr {
	if to.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

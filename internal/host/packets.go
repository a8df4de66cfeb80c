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

// DefaultMaxProbes takes 1.6 MiB of the kernel's memory.
const DefaultMaxProbes = 1 << 13

// packets lets checks be made by packets: of servers behind devices of their own, which have the program that takes the answers while a
// way leads there. Sockets ask the others.
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

// open makes the asker, once, which closes the sender.
func (p *packets) open(answered func([]probe.Answer)) (probe.Asker, error) {
	asker, err := packet.New(packet.Options{Tables: p.tables, Sender: p.sender, Want: p.hops.Want, Report: answered})
	if err != nil {
		return nil, fmt.Errorf("probes by packets: %w", err)
	}
	p.asker = asker
	return asker, nil
}

// close takes the program off all devices. The asker must be closed.
func (p *packets) close() error { return p.tables.Close() }

// put puts the program on devices, before anybody is asked by these ways.
func (p *packets) put(ways netdev.Ways, want []int) (on []int, err error) {
	on, err = p.tables.Follow(want)
	p.asker.HopsChanged(byServerDevices(ways, on))
	return on, err
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

package dataplane

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

// hostMaxMeters is LIMIT_METERS of bpf/abi.h: numbers of metered servers are below.
const hostMaxMeters = uint32(hostMeterLimitLIMIT_METERS)

// ServerMeter is what a server of this host got from clients and sent them, through VIPs: totals since its address came, which never fall
// while it stays.
type ServerMeter struct {
	DIP netip.Addr
	// In is to the server, Out from it: IP packets as the server sees them, fragments and ICMP errors included.
	In, Out Counter
	// FlowsIn are flows that clients began, FlowsOut those that the server did.
	FlowsIn, FlowsOut uint64
}

// metersLocked reads the meters of the servers of bindings, ordered by address; unmetered is how many have none, for want of room.
func (h *Host) metersLocked() (out []ServerMeter, unmetered int, err error) {
	seen := map[uint32]bool{}
	for i := range h.state.plans {
		p := &h.state.plans[i]
		number := h.flows.binding[p.index].Dip
		if seen[number] {
			continue
		}
		seen[number] = true
		if number >= hostMaxMeters {
			unmetered++
			continue
		}
		var perCPU []hostServerMeter
		if err := h.objects.ServerMeters.Lookup(number, &perCPU); err != nil {
			return nil, 0, fmt.Errorf("read meter of server %s: %w", p.DIP, err)
		}
		m := ServerMeter{DIP: p.DIP}
		for _, n := range perCPU {
			in, sent := &n.Of[hostMeterDirectionMETER_IN], &n.Of[hostMeterDirectionMETER_OUT]
			m.In.Packets += in.Packets
			m.In.Bytes += in.Bytes
			m.FlowsIn += in.Flows
			m.Out.Packets += sent.Packets
			m.Out.Bytes += sent.Bytes
			m.FlowsOut += sent.Flows
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b ServerMeter) int { return a.DIP.Compare(b.DIP) })
	return out, unmetered, nil
}

// clearMeter makes the meter of a number that is about to be free begin at zero.
func (h *Host) clearMeter(number uint32) {
	if number >= hostMaxMeters {
		return
	}
	// It fails for a key that is not there only.
	h.objects.ServerMeters.Put(number, make([]hostServerMeter, ebpf.MustPossibleCPU())) //nolint:errcheck // see above
}

package benchrun

import (
	"net/netip"
	"os"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// Host is the host's data plane, loaded for a benchmark: attached to a device of a namespace of its own.
type Host struct {
	*dataplane.Host
	ifindex int
	dir     string
}

// OpenHost loads the host's programs with their production tables around a directory of its own on the bpf file system, in the
// namespace of the device. Flows is the size of the flow table.
func OpenHost(ifindex int, dir string, flows uint32) (*Host, error) {
	// One that is left from a run that was killed goes first.
	if _, err := os.Stat(dir); err == nil {
		if err := dataplane.DetachHost(dir); err != nil {
			return nil, err
		}
	}
	h, err := dataplane.OpenHost(dataplane.HostOptions{Ifindex: ifindex, Dir: dir, Flows: flows})
	if err != nil {
		return nil, err
	}
	return &Host{h, ifindex, dir}, nil
}

// Close takes the programs off the device and frees the tables.
func (h *Host) Close() error {
	err := h.Host.Close()
	if gone := dataplane.DetachHost(h.dir); err == nil {
		err = gone
	}
	return err
}

// Flows counts what is in the flow table, by a whole pass of the sweep.
func (h *Host) Flows() (dataplane.HostFlows, error) {
	for range h.SweepSteps() {
		if err := h.SweepStep(); err != nil {
			return dataplane.HostFlows{}, err
		}
	}
	counters, err := h.Counters()
	return counters.Flows, err
}

// HostDIPs is the number of servers that the packets of host traffic are for; a power of two.
const HostDIPs = 8

// HostDIPPort is the port of the servers.
const HostDIPPort = 8080

// Addresses of host traffic: servers count up from a base, tunnels come from a mux.
var (
	hostDIP    = netip.MustParseAddr("10.30.0.8")
	hostSource = netip.MustParseAddr("100.64.3.7")
)

// HostDIP is the address of a server, and the outer destination of its packets.
func HostDIP(i int) netip.Addr { return add4(hostDIP, uint32(i)) }

// HostVIP is the VIP of host traffic.
func HostVIP() netip.Addr { return IPv4.VIP(0) }

// PlainVIP is the VIP of host traffic without cookies; its servers are those from HostDIP(HostDIPs) on.
func PlainVIP() netip.Addr { return IPv4.VIP(1) }

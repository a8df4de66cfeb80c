package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/plan"
)

// HostTables is the host's data plane as its agent sees it. *Host is the real one, *FakeHost the in-memory twin.
type HostTables interface {
	// Apply makes the tables equal to the full wanted state: adds, changes, then prunes.
	Apply(HostState) error
	// Counters sums over the CPUs: reasons by name, bindings by their plan key.
	Counters() (HostCounters, error)
	// Handshakes tells what clients' TCP connections came to, for the bindings of the last Apply that are wanted; only those that
	// rewrite are counted.
	Handshakes(want func(*plan.Binding) bool) ([]BindingHandshakes, error)
	// Serve puts the program that sees what servers send on the devices that servers are behind, and takes it off others. It stays when
	// the agent ends. on are the devices that have it, in order; the error says why others have it, or have it not.
	Serve(s HostServers) (on []int, err error)
	// Connections tells how many established flows of clients each binding of the last Apply has that rewrites, and how many there ever were since the
	// tables were made; those of which nobody knows are left out. It is cheap. `each` must not call back.
	Connections(each func(b *plan.Binding, established, opened uint64))
	// SweepStep takes one of many steps through the flow table, which together take out flows whose time is over and count the rest. No
	// step takes longer than a millisecond or so.
	SweepStep() error
	// Shares returns the VIPs that the last whole sweep found over their share of the flow table, ordered, and whether a quarter of the places that the
	// last step looked at have trusted flows: then shares may be exceeded before long. It is cheap.
	Shares() (over []Share, pressed bool)
	// Capacity is how much the tables take that plans may be too large for, by name. An error of Apply that is a NoRoom names one of them.
	Capacity() map[string]uint64
	// Has reports whether the tables have a binding where packets to this one find it.
	Has(b *plan.Binding) bool
	// Close lets go of the handles; the programs keep running from their pins.
	Close() error
}

// HostState is the full wanted state of the host's tables.
type HostState struct {
	// TunnelSources are where tunnel packets may come from: those of the host's own Network first, which are found
	// fastest, then those of others; at most 64 beyond one of each family.
	TunnelSources []netip.Prefix
	MTU           uint32
	Bindings      []plan.Binding
	// Guard says what servers may send, VIPs and Underlay what of it is the plan's: prefixes of all Networks.
	Guard          HostGuard
	VIPs, Underlay []netip.Prefix
	// Inside are the destinations that servers' connections go to without SNAT.
	Inside []netip.Prefix
	// Repairs are of endpoints of bindings, each once; those that do not fit into the tables are left out and counted.
	Repairs []*HostRepair
	// Switches are the prefixes that switches tunnel from; with TunnelSources they are at most 64 beyond one of each family.
	Switches []netip.Prefix
	// Spreads are of endpoints of bindings, each once; those that do not fit are left out and counted as Repairs are.
	Spreads []*HostSpread
	// Cookies are the keys of VIPs of bindings with Cookie. Without them packets get no cookies; those of flows that have one keep it.
	Cookies []plan.CookieKeys
}

// HostGuard says which packets of servers are dropped where they come in.
type HostGuard uint8

const (
	// GuardOff lets everything through.
	GuardOff HostGuard = iota
	// GuardNetworks drops what comes from a VIP but belongs to no endpoint of its own, what comes from an address of the underlay that
	// the machine does not reach by the same device, and tunnel packets to the underlay.
	GuardNetworks
	// GuardStrict drops besides what comes from any other address that the machine does not reach by the same device.
	GuardStrict
)

// HostCounters are totals since the maps were made.
type HostCounters struct {
	Reasons  map[string]uint64
	Bindings []BindingCounter
	// Unrepaired is how many endpoints the tables had no room for: their flows are not repaired.
	Unrepaired int
	// Flows is what the last whole sweep of the flow table found.
	Flows HostFlows
	// Servers are the servers of the bindings, ordered by address; Unmetered is how many are not counted, for want of room.
	Servers   []ServerMeter
	Unmetered int
}

// BindingCounter is what one binding received.
type BindingCounter struct {
	Binding plan.Binding
	Counter
}

// BindingHandshakes are the TCP connections that clients tried by one binding: totals that begin at 0 when the binding does, and
// never fall while it stays.
type BindingHandshakes struct {
	Binding plan.Binding
	// Asked counts SYNs that were delivered, Accepted SYN-ACKs and Refused RSTs that answered them.
	Asked, Accepted, Refused uint64
}

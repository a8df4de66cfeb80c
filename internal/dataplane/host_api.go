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
	// SweepStep takes one of many steps through the flow table, which together take out flows whose time is over and count the rest. No
	// step takes longer than a millisecond or so.
	SweepStep() error
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
	// Repairs are of endpoints of bindings, each once; those that do not fit into the tables are left out and counted.
	Repairs []*HostRepair
}

// HostCounters are totals since the maps were made.
type HostCounters struct {
	Reasons  map[string]uint64
	Bindings []BindingCounter
	// Unrepaired is how many endpoints the tables had no room for: their flows are not repaired.
	Unrepaired int
	// Flows is what the last whole sweep of the flow table found.
	Flows HostFlows
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

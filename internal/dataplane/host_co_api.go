package dataplane

import (
	"errors"

	"github.com/shuntlb/shunt/internal/lb"
)

// ErrNoCO: the kernel has no bpf_sk_assign_tcp_reqsk, which came with Linux 6.9.
var ErrNoCO = errors.New("the kernel lacks bpf_sk_assign_tcp_reqsk (Linux 6.9, CONFIG_SYN_COOKIES)")

// COEndpoint is an endpoint whose server owns the VIP on this machine, and whose TCP timestamps are to carry the member from the handshake on (form CO,
// protocol section 1.4).
type COEndpoint struct {
	Key    lb.EndpointKey // of a single port
	Member uint16         // at most cookie.MaxShortID
	Keys   [2][16]byte    // by key id
	Live   [2]bool
	// Shuffled says under which of them member ids are shuffled (cookie.SecretOf).
	Shuffled [2]bool
	Mint     uint8  // key id of new cookies; it is live
	MSS      uint16 // that the server announces
}

// COSetup is what a server's namespace lets handshakes offer (net.ipv4.tcp_sack, tcp_window_scaling).
type COSetup struct {
	SACK, WindowScaling bool
}

// HostCOTables are the handshakes that a host makes. *HostCO is the real one, *FakeHostCO the twin.
type HostCOTables interface {
	// Apply makes the tables equal to the wanted state. An endpoint that is new has its SYNs answered from now on; one that goes leaves what is under way to
	// the kernel, which ends it.
	Apply(COSetup, []COEndpoint) error
	// Tune sets the shared clock by this machine's: to be called every second or so.
	Tune() error
	// Counters are what became of segments, by reason, summed over the CPUs.
	Counters() (map[string]uint64, error)
	// Close lets go of the handles; the program goes on from its pins.
	Close() error
}

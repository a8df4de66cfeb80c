// Package doctor checks whether a machine is suitable as a mux, a host or a plain server, and
// returns a command that fixes each problem.
package doctor

import (
	"fmt"
	"net/netip"
)

// Status is the outcome of a check.
type Status string

// A node works despite warnings, but not with failures.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Result is the result of one check: the finding, and the command that fixes it, empty if there is
// nothing to fix.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Cure   string `json:"cure,omitempty"`
}

// Options describes the intended use of the machine.
type Options struct {
	Role      Role
	Interface string
	// MTU is that of the underlay in bytes, IP header included.
	MTU int
	// State is the agent's state directory.
	State string
	// For servers: VIPs are the expected ones; empty: those on its loopback. Tunnels are the
	// devices that decapsulate packets; empty: those of the kernel's tunnel kinds. GUE: packets
	// arrive in GUE. TunnelSources are as in the Network.
	VIPs          []netip.Addr
	Tunnels       []string
	GUE           bool
	TunnelSources []netip.Prefix
}

// Role is the intended role of the machine.
type Role string

// Roles that can be checked.
const (
	Mux  Role = "mux"
	Host Role = "host"
	// Server is a server without a host agent that owns the VIPs (rewrite: none).
	Server Role = "server"
)

// Interface holds the properties of an interface for the checks.
type Interface struct {
	Up     bool
	MTU    int
	Driver string
	Index  int
}

// XDP describes the driver's support for native XDP.
type XDP struct {
	Native bool
	// Attached is the name of the attached program; empty for none.
	Attached string
}

// VethPeer is the other end of a veth.
type VethPeer struct {
	// Command is the prefix of ip and ethtool commands for it: "ip netns exec NAME ", or empty.
	Command    string
	Name       string
	TxChecksum bool
	GRO        bool
}

// Tunnel is a device of the kernel that decapsulates packets.
type Tunnel struct {
	Name, Kind string
	Up         bool
	// Local and Remote are the outer addresses of packets that it accepts; invalid for any.
	Local, Remote netip.Addr
	// Inner4 and Inner6 report which packets it decapsulates.
	Inner4, Inner6 bool
}

// Address is an address of the machine, with its prefix length.
type Address struct {
	Prefix netip.Prefix
	Device string
}

// Way is the route of packets: the device, its MTU, and the MSS if the route sets one.
type Way struct {
	Device      string
	MTU, AdvMSS int
}

// Machine is the source of data for the checks. Local is the real one.
type Machine interface {
	// Kernel returns the release: "6.12.1-amd64".
	Kernel() (string, error)
	// Capabilities returns the effective set, a bit per capability (capabilities(7)).
	Capabilities() (uint64, error)
	// BTF reports whether the kernel has BTF.
	BTF() (bool, error)
	// BPFFS reports whether a bpf filesystem is mounted at the path.
	BPFFS(path string) (bool, error)
	// ForeignPins returns the objects of others that agents moved aside below the path.
	ForeignPins(path string) ([]string, error)
	// Sysctl reads a setting, its key with slashes.
	Sysctl(key string) (string, error)
	// Interface returns an interface by name; the error lists the existing ones.
	Interface(name string) (Interface, error)
	// XDP returns the capabilities of the driver.
	XDP(name string) (XDP, error)
	// LRO reports whether large receive offload is on.
	LRO(name string) (bool, error)
	// VethPeer returns the other end of a veth; false if it is not accessible from here.
	VethPeer(name string) (VethPeer, bool, error)
	// ProbeXDP, ProbeTCX and ProbeArray try kernel features that the data planes need.
	ProbeXDP() error
	ProbeTCX(device int) error
	ProbeArray() error
	// Tunnels returns the tunnel devices.
	Tunnels() ([]Tunnel, error)
	// Addresses returns the addresses of all devices.
	Addresses() ([]Address, error)
	// Way looks up the route to an address, from one of the machine's own unless from is invalid.
	Way(from, to netip.Addr) (Way, error)
	// RouteDevices returns the devices of all next hops of the route to an address.
	RouteDevices(to netip.Addr) ([]string, error)
	// Firewall returns the rules of netfilter, in the format of nft list ruleset and iptables-save;
	// none if these commands do not exist.
	Firewall() ([]string, error)
	// LockedOut returns the reason why no manager accepts the node with this state directory, as
	// its agent wrote it; empty if one does, or there is no node.
	LockedOut(state string) (string, error)
	// TakesGUE reports whether the kernel decapsulates GUE, over IPv6 or IPv4.
	TakesGUE(is6 bool) (bool, error)
}

// Run runs every check of the role, in a fixed order.
func Run(m Machine, o Options) []Result {
	e := &examination{m: m, o: o}
	e.kernel()
	if o.Role == Server {
		e.server()
		return e.results
	}
	e.capabilities()
	e.btf()
	e.bpffs()
	e.jit()
	e.programs()
	e.forwarding()
	if o.Role == Host {
		e.stamps()
	}
	e.link()
	e.managers()
	if o.Role == Host {
		e.answersLeave()
		e.firewall()
	}
	return e.results
}

// RunBasics runs the checks that need no interface and no role: kernel, capabilities, BTF.
func RunBasics(m Machine) []Result {
	e := &examination{m: m}
	e.kernel()
	e.capabilities()
	e.btf()
	return e.results
}

// Failed reports whether a check failed.
func Failed(results []Result) bool {
	for _, r := range results {
		if r.Status == Fail {
			return true
		}
	}
	return false
}

// examination collects results.
type examination struct {
	m       Machine
	o       Options
	results []Result
}

func (e *examination) ok(check, format string, args ...any) {
	e.results = append(e.results, Result{Check: check, Status: OK, Found: fmt.Sprintf(format, args...)})
}

func (e *examination) warn(check, cure, format string, args ...any) {
	e.results = append(e.results, Result{check, Warn, fmt.Sprintf(format, args...), cure})
}

func (e *examination) fail(check, cure, format string, args ...any) {
	e.results = append(e.results, Result{check, Fail, fmt.Sprintf(format, args...), cure})
}

// Package doctor checks whether a machine can be a mux, a host or a plain server, and says the command that cures what is wrong.
package doctor

import (
	"fmt"
	"net/netip"
)

// Status is how a check went.
type Status string

// Warnings do not keep a node from working; failures do.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Result is one check: what was found, and the command that cures it, empty when nothing is to be cured.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Cure   string `json:"cure,omitempty"`
}

// Options say what the machine shall be.
type Options struct {
	Role      Role
	Interface string
	// MTU of the underlay in bytes, IP header included.
	MTU int
	// State is the agent's state directory.
	State string
	// Of servers: VIPs are those that it shall have, none: those on its loopback. Tunnels are the devices that take packets out of
	// their tunnels, none: those of the kernel's tunnel kinds. GUE: packets come in GUE. TunnelSources are as in the Network.
	VIPs          []netip.Addr
	Tunnels       []string
	GUE           bool
	TunnelSources []netip.Prefix
}

// Role is what the machine shall be.
type Role string

// Roles that the doctor knows.
const (
	Mux  Role = "mux"
	Host Role = "host"
	// Server is a server without a host agent that owns the VIPs (rewrite: none).
	Server Role = "server"
)

// Interface is what the checks ask of the interface.
type Interface struct {
	Up     bool
	MTU    int
	Driver string
	Index  int
}

// XDP is what the driver of the interface says of native XDP.
type XDP struct {
	Native bool
	// Attached is the name of the program that is attached now; empty for none.
	Attached string
}

// VethPeer is the other end of a veth.
type VethPeer struct {
	// Command comes before ip and ethtool to reach it: "ip netns exec NAME ", or nothing.
	Command    string
	Name       string
	TxChecksum bool
	GRO        bool
}

// Tunnel is a device of the kernel that takes packets out of tunnels.
type Tunnel struct {
	Name, Kind string
	Up         bool
	// Local and Remote are the outer addresses that it takes packets to and from; invalid for any.
	Local, Remote netip.Addr
	// Inner4 and Inner6 tell which packets it takes out.
	Inner4, Inner6 bool
}

// Address is an address of the machine, with the prefix length that it was given.
type Address struct {
	Prefix netip.Prefix
	Device string
}

// Way is how packets leave: by which device, of which MTU, and with which MSS if the route says one.
type Way struct {
	Device      string
	MTU, AdvMSS int
}

// Machine is what the checks read. Local is the real one.
type Machine interface {
	// Kernel is the release: "6.12.1-amd64".
	Kernel() (string, error)
	// Capabilities is the effective set, a bit per capability (capabilities(7)).
	Capabilities() (uint64, error)
	// BTF tells whether the kernel carries its types.
	BTF() (bool, error)
	// BPFFS tells whether a bpf filesystem is mounted at the path.
	BPFFS(path string) (bool, error)
	// ForeignPins lists the objects of others that agents put aside below the path.
	ForeignPins(path string) ([]string, error)
	// Sysctl reads a setting, its key with slashes.
	Sysctl(key string) (string, error)
	// Interface finds an interface by name; the error says which there are.
	Interface(name string) (Interface, error)
	// XDP reads what the driver can do.
	XDP(name string) (XDP, error)
	// LRO tells whether large receive offload is on.
	LRO(name string) (bool, error)
	// VethPeer finds the other end of a veth; false when it cannot be reached from here.
	VethPeer(name string) (VethPeer, bool, error)
	// ProbeXDP, ProbeTCX and ProbeArray try what the data planes are built on.
	ProbeXDP() error
	ProbeTCX(device int) error
	ProbeArray() error
	// Tunnels lists the tunnel devices.
	Tunnels() ([]Tunnel, error)
	// Addresses lists the addresses of all devices.
	Addresses() ([]Address, error)
	// Way looks up the route to an address, from one of the machine's own unless that is invalid.
	Way(from, to netip.Addr) (Way, error)
	// RouteDevices names the devices of all next hops of the route to an address.
	RouteDevices(to netip.Addr) ([]string, error)
	// Firewall lists the rules of netfilter, as nft list ruleset and iptables-save print them; none where there is no such command.
	Firewall() ([]string, error)
	// LockedOut is why no manager takes the node with this state directory, as its agent wrote it; empty when one does, or there is no node.
	LockedOut(state string) (string, error)
	// TakesGUE tells whether the kernel takes packets out of GUE, over IPv6 or IPv4.
	TakesGUE(is6 bool) (bool, error)
}

// Run makes every check of the role, in a fixed order.
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

// RunBasics makes the checks that need no interface and no role: kernel, capabilities, BTF.
func RunBasics(m Machine) []Result {
	e := &examination{m: m}
	e.kernel()
	e.capabilities()
	e.btf()
	return e.results
}

// Failed tells whether a check failed.
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

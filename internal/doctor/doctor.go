// Package doctor checks whether a machine can be a mux or a host, and says the command that cures what is wrong.
package doctor

import "fmt"

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
}

// Role is what the machine shall be.
type Role string

// Roles that the doctor knows.
const (
	Mux  Role = "mux"
	Host Role = "host"
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
}

// Run makes every check of the role, in a fixed order.
func Run(m Machine, o Options) []Result {
	e := &examination{m: m, o: o}
	e.kernel()
	e.capabilities()
	e.btf()
	e.bpffs()
	e.jit()
	e.programs()
	e.forwarding()
	e.link()
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

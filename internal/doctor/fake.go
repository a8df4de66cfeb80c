package doctor

import (
	"fmt"
	"maps"
)

// Fake is a machine in memory. The zero value lacks everything; NewFake is in perfect health.
type Fake struct {
	Release  string
	Caps     uint64
	HasBTF   bool
	Mounted  bool
	Sysctls  map[string]string
	Links    map[string]Interface
	Native   XDP
	NoXDP    error
	HasLRO   bool
	Peer     VethPeer
	NoPeer   bool
	XDPError error
	TCXError error
	MapError error
}

// NewFake is a machine with one interface, eth0, that can be everything.
func NewFake() *Fake {
	return &Fake{
		Release: "6.12.1-amd64", Caps: 1<<41 - 1, HasBTF: true, Mounted: true,
		Sysctls: map[string]string{
			"net/core/bpf_jit_enable": "1", "net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
			"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/eth0/rp_filter": "0",
		},
		Links:  map[string]Interface{"eth0": {Up: true, MTU: 1600, Driver: "mlx5_core", Index: 2}},
		Native: XDP{Native: true},
		Peer:   VethPeer{Command: "ip netns exec fabric ", Name: "veth1", GRO: true},
	}
}

// With returns a copy with other settings.
func (f *Fake) With(key, value string) *Fake {
	c := *f
	c.Sysctls = maps.Clone(f.Sysctls)
	c.Sysctls[key] = value
	return &c
}

// Kernel implements Machine.
func (f *Fake) Kernel() (string, error) { return f.Release, nil }

// Capabilities implements Machine.
func (f *Fake) Capabilities() (uint64, error) { return f.Caps, nil }

// BTF implements Machine.
func (f *Fake) BTF() (bool, error) { return f.HasBTF, nil }

// BPFFS implements Machine.
func (f *Fake) BPFFS(string) (bool, error) { return f.Mounted, nil }

// Sysctl implements Machine.
func (f *Fake) Sysctl(key string) (string, error) {
	value, ok := f.Sysctls[key]
	if !ok {
		return "", fmt.Errorf("read %s: no such setting", key)
	}
	return value, nil
}

// Interface implements Machine.
func (f *Fake) Interface(name string) (Interface, error) {
	i, ok := f.Links[name]
	if !ok {
		return Interface{}, fmt.Errorf("interface %s: there is none", name)
	}
	return i, nil
}

// XDP implements Machine.
func (f *Fake) XDP(string) (XDP, error) { return f.Native, f.NoXDP }

// LRO implements Machine.
func (f *Fake) LRO(string) (bool, error) { return f.HasLRO, nil }

// VethPeer implements Machine.
func (f *Fake) VethPeer(string) (VethPeer, bool, error) { return f.Peer, !f.NoPeer, nil }

// ProbeXDP implements Machine.
func (f *Fake) ProbeXDP() error { return f.XDPError }

// ProbeTCX implements Machine.
func (f *Fake) ProbeTCX(int) error { return f.TCXError }

// ProbeArray implements Machine.
func (f *Fake) ProbeArray() error { return f.MapError }

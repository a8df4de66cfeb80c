package doctor

import (
	"fmt"
	"maps"
	"net/netip"
)

// Fake is a machine in memory. The zero value lacks everything; NewFake returns one that passes all
// checks.
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
	Locked   string
	Foreign  []string // pins
	// Fields of servers; a way is found by its source, or by its destination if there is no source.
	Devices []Tunnel
	Own     []Address
	Ways    map[netip.Addr]Way
	GUE     map[bool]bool // by whether it is over IPv6
	// Routes holds the devices of the default routes, by whether it is IPv6's.
	Routes   map[bool][]string
	Rules    []string
	NoRules  error
	NoGUE    error
	NoOwn    error
	NoDevice error
}

// NewFake returns a machine with one interface, eth0, that is suitable for every role.
func NewFake() *Fake {
	return &Fake{
		Release: "6.12.1-amd64", Caps: 1<<41 - 1, HasBTF: true, Mounted: true,
		Sysctls: map[string]string{
			"net/core/bpf_jit_enable": "1", "net/ipv4/ip_forward": "1", "net/ipv4/tcp_timestamps": "1", "net/ipv4/tcp_syncookies": "1", "net/ipv6/conf/all/forwarding": "1",
			"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/eth0/rp_filter": "0",
		},
		Links:  map[string]Interface{"eth0": {Up: true, MTU: 1600, Driver: "mlx5_core", Index: 2}},
		Native: XDP{Native: true}, Routes: map[bool][]string{false: {"eth0"}},
		Peer: VethPeer{Command: "ip netns exec fabric ", Name: "veth1", GRO: true},
	}
}

// NewFakeServer returns a machine with one interface, eth0, that serves 203.0.113.10 and
// 2001:db8:f::10 without a host agent.
func NewFakeServer() *Fake {
	vip4, vip6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:f::10")
	dip4, dip6 := netip.MustParseAddr("10.20.1.11"), netip.MustParseAddr("2001:db8:20:1::11")
	return &Fake{
		Release: "6.12.1-amd64",
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "0", "net/ipv6/conf/all/forwarding": "0",
			"net/ipv4/conf/all/rp_filter": "1", "net/ipv4/conf/eth0/rp_filter": "0", "net/ipv4/conf/shunt4/rp_filter": "2",
			"net/ipv4/conf/all/arp_ignore": "0", "net/ipv4/conf/eth0/arp_ignore": "1",
			"net/ipv4/conf/all/arp_announce": "0", "net/ipv4/conf/eth0/arp_announce": "2",
		},
		Links: map[string]Interface{"eth0": {Up: true, MTU: 1500, Driver: "mlx5_core", Index: 2}},
		Devices: []Tunnel{
			{Name: "shunt4", Kind: "ipip", Up: true, Local: dip4, Inner4: true},
			{Name: "shunt6", Kind: "ip6tnl", Up: true, Local: dip6, Inner4: true, Inner6: true},
		},
		Own: []Address{
			{netip.MustParsePrefix("127.0.0.1/8"), "lo"}, {netip.MustParsePrefix("::1/128"), "lo"},
			{netip.PrefixFrom(vip4, 32), "lo"}, {netip.PrefixFrom(vip6, 128), "lo"},
			{netip.PrefixFrom(dip4, 24), "eth0"}, {netip.PrefixFrom(dip6, 64), "eth0"}, {netip.PrefixFrom(dip4, 32), "shunt4"},
		},
		Ways: map[netip.Addr]Way{
			vip4: {Device: "eth0", MTU: 1500, AdvMSS: 1440}, vip6: {Device: "eth0", MTU: 1500, AdvMSS: 1400},
			netip.MustParseAddr("100.64.0.1"): {Device: "eth0", MTU: 1500},
		},
		GUE: map[bool]bool{false: true, true: true},
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

// ForeignPins implements Machine.
func (f *Fake) ForeignPins(string) ([]string, error) { return f.Foreign, nil }

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

// LockedOut implements Machine.
func (f *Fake) LockedOut(string) (string, error) { return f.Locked, nil }

// Tunnels implements Machine.
func (f *Fake) Tunnels() ([]Tunnel, error) { return f.Devices, f.NoDevice }

// Addresses implements Machine.
func (f *Fake) Addresses() ([]Address, error) { return f.Own, f.NoOwn }

// Way implements Machine.
func (f *Fake) Way(from, to netip.Addr) (Way, error) {
	if !from.IsValid() {
		from = to
	}
	w, ok := f.Ways[from]
	if !ok {
		return Way{}, fmt.Errorf("look up the route to %s: network is unreachable", to)
	}
	return w, nil
}

// RouteDevices implements Machine.
func (f *Fake) RouteDevices(to netip.Addr) ([]string, error) {
	devices, ok := f.Routes[to.Is6()]
	if !ok {
		return nil, fmt.Errorf("look up the route to %s: network is unreachable", to)
	}
	return devices, nil
}

// Firewall implements Machine.
func (f *Fake) Firewall() ([]string, error) { return f.Rules, f.NoRules }

// TakesGUE implements Machine.
func (f *Fake) TakesGUE(is6 bool) (bool, error) { return f.GUE[is6], f.NoGUE }

package doctor

import (
	"errors"
	"slices"
	"testing"
)

func options(role Role) Options { return Options{Role: role, Interface: "eth0", MTU: 1500} }

// TestCapabilitiesOfUnits: the capabilities that the service units keep are sufficient.
func TestCapabilitiesOfUnits(t *testing.T) {
	m := NewFake()
	m.Caps = 1<<5 | 1<<6 | 1<<7 | 1<<10 | 1<<12 | 1<<13 | 1<<24 | 1<<38 | 1<<39
	for _, role := range []Role{Mux, Host} {
		for _, r := range Run(m, options(role)) {
			if r.Check == "capabilities" && r.Status != OK {
				t.Errorf("%s: %+v", role, r)
			}
		}
	}
}

func TestHealthy(t *testing.T) {
	want := map[Role][]string{
		Mux:  {"kernel", "capabilities", "btf", "bpffs", "jit", "bpf arrays", "xdp", "ip_forward", "ipv6 forwarding", "interface", "mtu", "rp_filter", "native xdp", "lro"},
		Host: {"kernel", "capabilities", "btf", "bpffs", "jit", "bpf arrays", "tcx", "ip_forward", "ipv6 forwarding", "tcp timestamps", "syn cookies", "interface", "mtu", "rp_filter", "answers", "firewall"},
	}
	for role, checks := range want {
		results := Run(NewFake(), options(role))
		var got []string
		for _, r := range results {
			got = append(got, r.Check)
			if r.Status != OK || r.Cure != "" || r.Found == "" {
				t.Errorf("%s: %+v", role, r)
			}
		}
		if !slices.Equal(got, checks) || Failed(results) {
			t.Errorf("%s: checks %q, want %q", role, got, checks)
		}
	}
}

// veth changes eth0 to a veth whose other end is in the namespace fabric.
func veth(f *Fake) { f.Links["eth0"] = Interface{Up: true, MTU: 1600, Driver: "veth"} }

// link changes eth0.
func link(f *Fake, change func(*Interface)) {
	i := f.Links["eth0"]
	change(&i)
	f.Links["eth0"] = i
}

// TestEachCheck breaks one thing at a time: exactly that check fails or warns, and returns the
// cure.
func TestEachCheck(t *testing.T) {
	refused := errors.New("operation not permitted")
	cases := []struct {
		role   Role
		spoil  func(*Fake)
		result Result
	}{
		{Mux, func(f *Fake) { f.Release = "6.1.0-13-amd64" }, Result{"kernel", Fail, "Linux 6.1.0-13-amd64, must be 6.6 or newer", "install Linux 6.6 or newer, for instance on Debian 12: apt install -t bookworm-backports linux-image-amd64"}},
		{Mux, func(f *Fake) { f.Release = "5.15.0" }, Result{"kernel", Fail, "Linux 5.15.0, must be 6.6 or newer", "install Linux 6.6 or newer, for instance on Debian 12: apt install -t bookworm-backports linux-image-amd64"}},
		{Host, func(f *Fake) { f.Caps &^= 1<<39 | 1<<12 }, Result{"capabilities", Fail, "without CAP_NET_ADMIN, CAP_BPF", "run it as root: sudo shunt doctor"}},
		{Mux, func(f *Fake) { f.Locked = "the managers do not accept this node's certificate" }, Result{"managers", Fail, "the managers do not accept this node's certificate", "write a new token to the --token-file of the agent"}},
		{Mux, func(f *Fake) { f.HasBTF = false }, Result{"btf", Fail, "no /sys/kernel/btf/vmlinux", "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y: the distributions' kernels are"}},
		{Host, func(f *Fake) { f.Foreign = []string{"/sys/fs/bpf/shunt/host/foreign-link_in-1"} }, Result{"bpffs", Warn,
			"objects of other programs were put aside: /sys/fs/bpf/shunt/host/foreign-link_in-1",
			"find out which program pins them at paths of Shunt, then move or remove them: the last pin of a link holds its program attached"}},
		{Mux, func(f *Fake) { f.Mounted = false }, Result{"bpffs", Fail, "no bpf filesystem at /sys/fs/bpf", "mount -t bpf bpf /sys/fs/bpf"}},
		{Mux, func(f *Fake) { f.Sysctls["net/core/bpf_jit_enable"] = "0" }, Result{"jit", Warn, "net.core.bpf_jit_enable is 0: programs are interpreted", "sysctl -w net.core.bpf_jit_enable=1"}},
		{Mux, func(f *Fake) { f.MapError = refused }, Result{"bpf arrays", Fail, "operation not permitted", "run it as root: sudo shunt doctor"}},
		{Mux, func(f *Fake) { f.XDPError = refused }, Result{"xdp", Fail, "operation not permitted", "run it as root: sudo shunt doctor"}},
		{Host, func(f *Fake) { f.TCXError = refused }, Result{"tcx", Fail, "operation not permitted", "boot Linux 6.6 or newer, and run it as root: sudo shunt doctor"}},
		{Host, func(f *Fake) { f.Sysctls["net/ipv4/ip_forward"] = "0" }, Result{"ip_forward", Fail, "net.ipv4.ip_forward is 0, must be 1", "sysctl -w net.ipv4.ip_forward=1"}},
		{Mux, func(f *Fake) { f.Sysctls["net/ipv6/conf/all/forwarding"] = "0" }, Result{"ipv6 forwarding", Fail, "net.ipv6.conf.all.forwarding is 0, must be 1", "sysctl -w net.ipv6.conf.all.forwarding=1"}},
		{Mux, func(f *Fake) { delete(f.Sysctls, "net/ipv6/conf/all/forwarding") }, Result{"ipv6 forwarding", Fail, "read net/ipv6/conf/all/forwarding: no such setting", "sysctl -w net.ipv6.conf.all.forwarding=1"}},
		{Host, func(f *Fake) { f.Sysctls["net/ipv4/tcp_timestamps"] = "0" }, Result{"tcp timestamps", Warn, "net.ipv4.tcp_timestamps is 0: connections carry no cookie (affinity cookie), and are kept by flow tables", "sysctl -w net.ipv4.tcp_timestamps=1"}},
		{Host, func(f *Fake) { f.Sysctls["net/ipv4/tcp_syncookies"] = "2" }, Result{"syn cookies", Warn, "net.ipv4.tcp_syncookies is 2: every connection is opened by one, and those whose clients send no timestamps lose window scaling and SACK", "sysctl -w net.ipv4.tcp_syncookies=1"}},
		{Mux, func(f *Fake) { link(f, func(i *Interface) { i.Up = false }) }, Result{"interface", Fail, "eth0 is down", "ip link set dev eth0 up"}},
		{Mux, func(f *Fake) { link(f, func(i *Interface) { i.MTU = 1300 }) }, Result{"mtu", Fail, "1300, must be at least 1320: an IPv6 packet of 1280 bytes and 40 of the tunnel", "ip link set dev eth0 mtu 1500"}},
		{Host, func(f *Fake) { link(f, func(i *Interface) { i.MTU = 1400 }) }, Result{"mtu", Fail, "1400, must be at least the network's 1500", "ip link set dev eth0 mtu 1500"}},
		{Host, func(f *Fake) { link(f, func(i *Interface) { i.MTU = 1500 }) }, Result{"mtu", Warn, "1500: inside the tunnel 1460 are left; TCP is clamped to that, larger datagrams are refused, and IPv4 clients that fragment them are not told", "ip link set dev eth0 mtu 1540, on every device of the underlay"}},
		{Host, func(f *Fake) { f.Sysctls["net/ipv4/conf/all/rp_filter"] = "1" }, Result{"rp_filter", Fail, "net.ipv4.conf.all.rp_filter is 1, must be 0: packets whose source is not reached by eth0 are dropped", "sysctl -w net.ipv4.conf.all.rp_filter=0"}},
		{Mux, func(f *Fake) { f.Sysctls["net/ipv4/conf/eth0/rp_filter"] = "1" }, Result{"rp_filter", Fail, "net.ipv4.conf.eth0.rp_filter is 1, must be 0: packets whose source is not reached by eth0 are dropped", "sysctl -w net.ipv4.conf.eth0.rp_filter=0"}},
		{Mux, func(f *Fake) {
			f.Sysctls["net/ipv4/conf/eth0/rp_filter"], f.Sysctls["net/ipv4/conf/all/rp_filter"] = "1", "1"
		}, Result{"rp_filter", Fail, "net.ipv4.conf.all.rp_filter and net.ipv4.conf.eth0.rp_filter is 1, must be 0: packets whose source is not reached by eth0 are dropped", "sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0"}},
		{Mux, func(f *Fake) { f.Native.Native = false }, Result{"native xdp", Fail, "the driver of eth0 has none", "use another NIC, or run the mux slower with --xdp-mode generic"}},
		{Mux, func(f *Fake) { f.Native.Attached = "xdp_filter" }, Result{"native xdp", Warn, "supported, but program xdp_filter is attached", "ip link set dev eth0 xdp off"}},
		{Mux, func(f *Fake) { f.NoXDP = refused }, Result{"native xdp", Warn, "cannot be asked: operation not permitted", "try it: shunt mux --xdp-mode native …"}},
		{Mux, func(f *Fake) { f.HasLRO = true }, Result{"lro", Fail, "on, must be off for native XDP", "ethtool -K eth0 lro off"}},
		{Mux, func(f *Fake) { veth(f); f.Peer.TxChecksum = true }, Result{"veth peer", Fail, "veth1 leaves checksums unfinished (tx on)", "ip netns exec fabric ethtool -K veth1 tx off"}},
		{Mux, func(f *Fake) { veth(f); f.Peer.GRO = false }, Result{"veth peer", Fail, "veth1 drops what XDP sends (gro off)", "ip netns exec fabric ethtool -K veth1 gro on"}},
		{Mux, func(f *Fake) { veth(f); f.NoPeer = true }, Result{"veth peer", Warn, "the other end of eth0 is not in a named namespace, cannot be checked", "where the other end is: ethtool -K PEER tx off gro on"}},
	}
	for _, c := range cases {
		machine := NewFake()
		c.spoil(machine)
		results := Run(machine, options(c.role))
		var wrong []Result
		for _, r := range results {
			if r.Status != OK {
				wrong = append(wrong, r)
			}
		}
		if len(wrong) != 1 || wrong[0] != c.result {
			t.Errorf("\n got %+v\nwant %+v", wrong, c.result)
		}
		if Failed(results) != (c.result.Status == Fail) {
			t.Errorf("%s: Failed is %v", c.result.Found, Failed(results))
		}
	}
}

func TestNoInterface(t *testing.T) {
	o := options(Mux)
	o.Interface = "eth7"
	results := Run(NewFake(), o)
	last := results[len(results)-1]
	if want := (Result{"interface", Fail, "interface eth7: there is none", "name one that there is: shunt doctor --interface NAME"}); last != want {
		t.Errorf("got %+v, want %+v", last, want)
	}
}

// TestLooseFilter: a loose filter accepts sources that are reachable by any interface.
func TestLooseFilter(t *testing.T) {
	if Failed(Run(NewFake().With("net/ipv4/conf/eth0/rp_filter", "2").With("net/ipv4/conf/all/rp_filter", "1"), options(Host))) {
		t.Error("failed")
	}
}

// TestOwnProgram: Shunt's own program does not fail the check.
func TestOwnProgram(t *testing.T) {
	machine := NewFake()
	machine.Native.Attached = muxProgram
	for _, r := range Run(machine, options(Mux)) {
		if r.Status != OK {
			t.Errorf("%+v", r)
		}
	}
}

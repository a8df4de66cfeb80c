package doctor

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
)

func serverOptions() Options {
	return Options{
		Role: Server, Interface: "eth0", MTU: 1500, VIPs: []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:f::10")},
		TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd53:6875:6e74::/64")},
	}
}

// TestHealthyServer checks a server that is set up as in docs/ops/plain-servers.md, with VIPs given
// or found.
func TestHealthyServer(t *testing.T) {
	want := []string{"kernel", "interface", "mtu", "vip", "vip", "ipv4 tunnel", "rp_filter", "ipv6 tunnel", "arp_ignore", "arp_announce", "mss", "mss", "ip_forward", "ipv6 forwarding"}
	for _, named := range []bool{true, false} {
		o := serverOptions()
		if !named {
			o.VIPs = nil
		}
		var got []string
		for _, r := range Run(NewFakeServer(), o) {
			got = append(got, r.Check)
			if r.Status != OK || r.Cure != "" || r.Found == "" {
				t.Errorf("%+v", r)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("checks %q, want %q", got, want)
		}
	}
}

// TestServerOfOneFamily: checks of the other family are skipped.
func TestServerOfOneFamily(t *testing.T) {
	m, o := NewFakeServer(), serverOptions()
	o.VIPs = o.VIPs[:1]
	m.Devices, m.Own = m.Devices[:1], append(m.Own[:3:3], m.Own[4], m.Own[6])
	delete(m.Sysctls, "net/ipv6/conf/all/forwarding")
	for _, r := range Run(m, o) {
		if r.Status != OK {
			t.Errorf("%+v", r)
		}
	}
	m, o = NewFakeServer(), serverOptions()
	o.VIPs = o.VIPs[1:]
	m.Devices, m.Sysctls = m.Devices[1:], map[string]string{"net/ipv6/conf/all/forwarding": "0"}
	for _, r := range Run(m, o) {
		if r.Status != OK {
			t.Errorf("%+v", r)
		}
	}
}

const (
	make4 = "ip link add name shunt4 type ipip local 10.20.1.11 remote any; ip link set dev shunt4 up"
	make6 = "ip link add name shunt6 type ip6tnl mode any local 2001:db8:20:1::11 remote any; ip link set dev shunt6 up"
)

// TestEachServerCheck breaks one thing at a time: exactly that check fails or warns, and returns
// the cure.
func TestEachServerCheck(t *testing.T) {
	vip4 := netip.MustParseAddr("203.0.113.10")
	own := func(f *Fake, i int, prefix, device string) { f.Own[i] = Address{netip.MustParsePrefix(prefix), device} }
	cases := []struct {
		spoil  func(*Fake, *Options)
		result Result
	}{
		{func(f *Fake, _ *Options) { f.Release = "4.4.0-210-generic" }, Result{"kernel", Fail, "Linux 4.4.0-210-generic, must be 4.7 or newer", "install Linux 4.7 or newer, for instance on Debian 12: apt install -t bookworm-backports linux-image-amd64"}},
		{func(_ *Fake, o *Options) { o.Interface = "eth7" }, Result{"interface", Fail, "interface eth7: there is none", "name one that there is: shunt doctor --interface NAME"}},
		{func(f *Fake, _ *Options) { link(f, func(i *Interface) { i.Up = false }) }, Result{"interface", Fail, "eth0 is down", "ip link set dev eth0 up"}},
		{func(f *Fake, _ *Options) { link(f, func(i *Interface) { i.MTU = 1400 }) }, Result{"mtu", Fail, "1400, must be at least the network's 1500", "ip link set dev eth0 mtu 1500"}},
		{func(f *Fake, _ *Options) { f.NoOwn = errors.New("list devices: refused") }, Result{"vip", Fail, "list devices: refused", "run it as root: sudo shunt doctor"}},
		{func(f *Fake, _ *Options) { f.Own = slices.Delete(f.Own, 2, 3) }, Result{"vip", Fail, "203.0.113.10 is no address of this machine", "ip addr add 203.0.113.10/32 dev lo"}},
		{func(f *Fake, _ *Options) { f.Own = slices.Delete(f.Own, 3, 4) }, Result{"vip", Fail, "2001:db8:f::10 is no address of this machine", "ip addr add 2001:db8:f::10/128 dev lo"}},
		{func(f *Fake, _ *Options) { own(f, 2, "203.0.113.10/32", "eth0") }, Result{"vip", Fail, "203.0.113.10 is on eth0, which says so to its neighbours: so would each server of the VIP", "ip addr del 203.0.113.10/32 dev eth0; ip addr add 203.0.113.10/32 dev lo"}},
		{func(f *Fake, _ *Options) { own(f, 2, "203.0.113.10/24", "lo") }, Result{"vip", Fail, "203.0.113.10/24 on lo makes all of 203.0.113.0/24 this machine's", "ip addr del 203.0.113.10/24 dev lo; ip addr add 203.0.113.10/32 dev lo"}},
		{func(f *Fake, _ *Options) { f.Devices = nil; f.NoDevice = errors.New("list devices: refused") }, Result{"ipv4 tunnel", Fail, "list devices: refused", "run it as root: sudo shunt doctor"}},
		{func(f *Fake, _ *Options) { f.Devices[0].Up = false }, Result{"ipv4 tunnel", Fail, "shunt4 (ipip) is down", "ip link set dev shunt4 up"}},
		{func(f *Fake, _ *Options) { f.Devices = f.Devices[:1] }, Result{"ipv6 tunnel", Fail, "no device takes IPv6 packets out of tunnels", make6}},
		{func(f *Fake, _ *Options) { f.Devices = f.Devices[1:]; f.Devices[0].Inner4 = false }, Result{"ipv4 tunnel", Fail, "no device takes IPv4 packets out of tunnels", make4}},
		{func(f *Fake, _ *Options) { f.Devices[1].Remote = netip.MustParseAddr("2001:db8:10::11") }, Result{"ipv6 tunnel", Fail, "shunt6 (ip6tnl) takes packets from 2001:db8:10::11 only, but muxes send from many addresses", "ip link del shunt6; " + make6}},
		{func(f *Fake, _ *Options) { f.Devices[1].Local = netip.MustParseAddr("2001:db8:20:1::99") }, Result{"ipv6 tunnel", Fail, "shunt6 (ip6tnl) takes packets to 2001:db8:20:1::99, which is no address of this machine", "ip link del shunt6; " + make6}},
		{func(_ *Fake, o *Options) { o.Tunnels = []string{"shunt4", "tun9"} }, Result{"ipv6 tunnel", Fail, "interface tun9: there is none", "name one that there is: shunt doctor --tunnel NAME"}},
		{func(f *Fake, o *Options) {
			o.Tunnels, f.Links["tun9"] = []string{"shunt4", "tun9"}, Interface{Driver: "tun"}
		}, Result{"ipv6 tunnel", Fail, "tun9 (tun) is down", "ip link set dev tun9 up"}},
		{func(f *Fake, _ *Options) { f.Sysctls["net/ipv4/conf/shunt4/rp_filter"] = "0" }, Result{"rp_filter", Fail, "strict on shunt4: clients are reached by eth0, what comes from them out of the tunnel is dropped", "sysctl -w net/ipv4/conf/shunt4/rp_filter=2"}},
		{func(f *Fake, _ *Options) { f.Own = f.Own[:6] }, Result{"rp_filter", Fail, "2 on shunt4, which has no IPv4 address: there the kernel takes it for strict", "ip addr add 10.20.1.11/32 dev shunt4 scope host"}},
		{func(f *Fake, _ *Options) { f.Ways[netip.MustParseAddr("100.64.0.1")] = Way{Device: "eth1"} }, Result{"rp_filter", Fail, "strict on eth0, and the way back to tunnel source 100.64.0.0/16 is not by eth0: tunnel packets are dropped", "sysctl -w net/ipv4/conf/eth0/rp_filter=2"}},
		{func(f *Fake, _ *Options) { f.Sysctls["net/ipv4/conf/eth0/arp_ignore"] = "0" }, Result{"arp_ignore", Warn, "eth0 answers ARP for VIPs, as each of their servers would", "sysctl -w net/ipv4/conf/eth0/arp_ignore=1"}},
		{func(f *Fake, _ *Options) { f.Sysctls["net/ipv4/conf/eth0/arp_announce"] = "1" }, Result{"arp_announce", Warn, "eth0 asks for its neighbours in the name of VIPs, which they then look for here", "sysctl -w net/ipv4/conf/eth0/arp_announce=2"}},
		{func(f *Fake, _ *Options) {
			own(f, 4, "203.0.113.11/24", "eth0")
			own(f, 6, "203.0.113.11/32", "shunt4")
			f.Devices[0].Local = netip.MustParseAddr("203.0.113.11")
			f.Sysctls["net/ipv4/conf/eth0/arp_ignore"] = "0"
		}, Result{"arp_ignore", Fail, "eth0 answers ARP for VIPs, as each of their servers would", "sysctl -w net/ipv4/conf/eth0/arp_ignore=1"}},
		{func(f *Fake, _ *Options) { delete(f.Sysctls, "net/ipv4/conf/eth0/arp_ignore") }, Result{"arp_ignore", Fail, "read net/ipv4/conf/eth0/arp_ignore: no such setting", "mount -t proc proc /proc"}},
		{func(f *Fake, _ *Options) { delete(f.Ways, vip4) }, Result{"route", Fail, "no way from 203.0.113.10 to clients: look up the route to 192.0.2.1: network is unreachable", "ip route add default via ROUTER dev eth0"}},
		{func(f *Fake, _ *Options) { f.Ways[vip4] = Way{Device: "eth0", MTU: 1500} }, Result{"mss", Warn, "203.0.113.10 advertises 1460, 1440 fit the tunnel: clients' larger segments wait for ICMP, unless nftables clamps", "ip route change default … advmss 1440"}},
		{func(f *Fake, _ *Options) {
			f.Ways[netip.MustParseAddr("2001:db8:f::10")] = Way{Device: "eth0", MTU: 1480}
		}, Result{"mss", Warn, "2001:db8:f::10 advertises 1420, 1400 fit the tunnel: clients' larger segments wait for ICMP, unless nftables clamps", "ip -6 route change default … advmss 1400"}},
		{func(f *Fake, _ *Options) { f.Sysctls["net/ipv4/ip_forward"] = "1" }, Result{"ip_forward", Warn, "net.ipv4.ip_forward is 1 and need not be: what comes for a VIP that is not here goes back to the muxes", "sysctl -w net.ipv4.ip_forward=0, unless this machine routes for others"}},
		{func(f *Fake, _ *Options) { f.Sysctls["net/ipv6/conf/all/forwarding"] = "1" }, Result{"ipv6 forwarding", Warn, "net.ipv6.conf.all.forwarding is 1 and need not be: what comes for a VIP that is not here goes back to the muxes", "sysctl -w net.ipv6.conf.all.forwarding=0, unless this machine routes for others"}},
	}
	for _, c := range cases {
		machine, o := NewFakeServer(), serverOptions()
		c.spoil(machine, &o)
		results := Run(machine, o)
		var wrong []Result
		for _, r := range results {
			if r.Status != OK {
				wrong = append(wrong, r)
			}
		}
		// Without the devices of one family there are none of the other either.
		if c.result.Found == "list devices: refused" && len(wrong) == 2 {
			wrong = wrong[:1]
		}
		if len(wrong) != 1 || wrong[0] != c.result {
			t.Errorf("\n got %+v\nwant %+v", wrong, c.result)
		}
		if Failed(results) != (c.result.Status == Fail) {
			t.Errorf("%s: Failed is %v", c.result.Found, Failed(results))
		}
	}
}

// TestServerBehindIPv6: if hosts have IPv6 addresses, IPv4 arrives in tunnels of IPv6.
func TestServerBehindIPv6(t *testing.T) {
	m := NewFakeServer().With("net/ipv4/conf/shunt6/rp_filter", "2")
	m.Devices, m.Own[6].Device = m.Devices[1:], "shunt6"
	for _, r := range Run(m, serverOptions()) {
		if r.Status != OK {
			t.Errorf("%+v", r)
		}
	}
}

// TestServerOfGUE: GUE needs 24 bytes more, and a port of the kernel.
func TestServerOfGUE(t *testing.T) {
	o := serverOptions()
	o.GUE = true
	m := NewFakeServer()
	m.GUE[true] = false
	m.Ways[o.VIPs[1]] = Way{Device: "eth0", MTU: 1500, AdvMSS: 1376}
	want := []Result{
		{"gue", Fail, "the kernel takes no GUE at UDP port 6080 over IPv6", "ip -6 fou add port 6080 gue"},
		{"mss", Warn, "203.0.113.10 advertises 1440, 1416 fit the tunnel: clients' larger segments wait for ICMP, unless nftables clamps", "ip route change default … advmss 1416"},
	}
	var wrong []Result
	for _, r := range Run(m, o) {
		if r.Status != OK {
			wrong = append(wrong, r)
		}
	}
	if !slices.Equal(wrong, want) {
		t.Errorf("\n got %+v\nwant %+v", wrong, want)
	}
	m = NewFakeServer()
	m.NoGUE = errors.New("list ports of foo over UDP: no such file or directory")
	refused := 0
	for _, r := range Run(m, o) {
		if r.Check == "gue" && r.Status == Fail && r.Found == m.NoGUE.Error() {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("%d families have no GUE, expected both", refused)
	}
}

// TestServerWithoutVIPs: no VIPs are given, and none is found.
func TestServerWithoutVIPs(t *testing.T) {
	m, o := NewFakeServer(), serverOptions()
	m.Own, o.VIPs = append(m.Own[:2:2], m.Own[4:]...), nil
	results := Run(m, o)
	want := Result{"vip", Fail, "lo has no address but its own", "ip addr add VIP dev lo, or name it: shunt doctor --role server --vip VIP"}
	if last := results[len(results)-1]; last != want || len(results) != 4 {
		t.Errorf("got %+v, want the last to be %+v", results, want)
	}
}

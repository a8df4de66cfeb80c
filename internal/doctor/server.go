package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// guePort is the UDP port of GUE (docs/wire/gue.md).
const guePort = 6080

// Bytes of headers.
const (
	ip4Header = 20
	ip6Header = 40
	tcpHeader = 20
	// gueHeader is the size of UDP, GUE and its private data.
	gueHeader = 24
)

// Sample client addresses: of no network (RFC 5737, RFC 3849), so that the default route applies.
var (
	someClient4 = netip.MustParseAddr("192.0.2.1")
	someClient6 = netip.MustParseAddr("2001:db8::1")
)

// server runs the checks of a server that decapsulates packets itself and owns the VIPs.
func (e *examination) server() {
	i, err := e.m.Interface(e.o.Interface)
	if err != nil {
		e.fail("interface", "name one that there is: shunt doctor --interface NAME", "%v", err)
		return
	}
	if i.Up {
		e.ok("interface", "%s is up", e.o.Interface)
	} else {
		e.fail("interface", "ip link set dev "+e.o.Interface+" up", "%s is down", e.o.Interface)
	}
	if i.MTU < e.o.MTU {
		e.fail("mtu", fmt.Sprintf("ip link set dev %s mtu %d", e.o.Interface, e.o.MTU), "%d, must be at least the network's %d", i.MTU, e.o.MTU)
	} else {
		e.ok("mtu", "%d", i.MTU)
	}
	own, err := e.m.Addresses()
	if err != nil {
		e.fail("vip", "run it as root: sudo shunt doctor", "%v", err)
		return
	}
	vips := e.vips(own)
	has4 := slices.ContainsFunc(vips, netip.Addr.Is4)
	has6 := slices.ContainsFunc(vips, netip.Addr.Is6)
	for _, family := range []struct {
		there, is6  bool
		check, name string
	}{{has4, false, "ipv4 tunnel", "IPv4"}, {has6, true, "ipv6 tunnel", "IPv6"}} {
		if !family.there {
			continue
		}
		device := e.tunnel(family.check, family.name, family.is6, own)
		if device != "" && !family.is6 {
			e.inwards(device, own)
		}
		if e.o.GUE {
			e.gue(family.name, family.is6)
		}
	}
	if has4 {
		e.arp(vips, own)
	}
	for _, vip := range vips {
		e.answers(vip, own)
	}
	e.unneeded("ip_forward", "net/ipv4/ip_forward", has4)
	e.unneeded("ipv6 forwarding", "net/ipv6/conf/all/forwarding", has6)
}

// vips returns the VIPs that the machine is expected to have, after checking each.
func (e *examination) vips(own []Address) []netip.Addr {
	const check, loopback = "vip", "lo"
	vips := e.o.VIPs
	if len(vips) == 0 {
		for _, a := range own {
			if a.Device == loopback && !a.Prefix.Addr().IsLoopback() {
				vips = append(vips, a.Prefix.Addr())
			}
		}
		if len(vips) == 0 {
			e.fail(check, "ip addr add VIP dev lo, or name it: shunt doctor --role server --vip VIP", "lo has no address but its own")
		}
	}
	for _, vip := range vips {
		at := slices.IndexFunc(own, func(a Address) bool { return a.Prefix.Addr() == vip })
		add := fmt.Sprintf("ip addr add %s/%d dev lo", vip, vip.BitLen())
		if at < 0 {
			e.fail(check, add, "%s is no address of this machine", vip)
			continue
		}
		a := own[at]
		remove := fmt.Sprintf("ip addr del %s dev %s; ", a.Prefix, a.Device)
		switch {
		case a.Device == e.o.Interface:
			e.fail(check, remove+add, "%s is on %s, which says so to its neighbours: so would each server of the VIP", vip, a.Device)
		case a.Device == loopback && a.Prefix.Bits() != vip.BitLen():
			e.fail(check, remove+add, "%s on lo makes all of %s this machine's", a.Prefix, a.Prefix.Masked())
		default:
			e.ok(check, "%s is on %s", vip, a.Device)
		}
	}
	return vips
}

// tunnel checks that a device decapsulates packets of a family, and returns its name, empty if none
// does.
func (e *examination) tunnel(check, family string, is6 bool, own []Address) string {
	all, err := e.m.Tunnels()
	if err != nil {
		e.fail(check, "run it as root: sudo shunt doctor", "%v", err)
		return ""
	}
	dip := e.dip(own, is6)
	wrong := Result{check, Fail, fmt.Sprintf("no device takes %s packets out of tunnels", family), makeTunnel(is6, dip)}
	note := func(cure, format string, args ...any) {
		wrong = Result{check, Fail, fmt.Sprintf(format, args...), cure}
	}
	for _, name := range e.o.Tunnels {
		if slices.ContainsFunc(all, func(t Tunnel) bool { return t.Name == name }) {
			continue
		}
		// Of another kind, or missing: assume that a device given by name decapsulates all packets.
		i, err := e.m.Interface(name)
		if err != nil {
			note("name one that there is: shunt doctor --tunnel NAME", "%v", err)
			continue
		}
		all = append(all, Tunnel{Name: name, Kind: i.Driver, Up: i.Up, Inner4: true, Inner6: true})
	}
	all = slices.DeleteFunc(slices.Clone(all), func(t Tunnel) bool {
		return len(e.o.Tunnels) > 0 && !slices.Contains(e.o.Tunnels, t.Name) || is6 && !t.Inner6 || !is6 && !t.Inner4
	})
	// Tunnels are of the family of the DIP, which is the VIP's, unless the host's address is of the
	// other one.
	usual := func(t Tunnel) bool { return t.Kind == "ipip" && !is6 || t.Kind == "ip6tnl" && is6 }
	if slices.ContainsFunc(all, usual) {
		all = slices.DeleteFunc(all, func(t Tunnel) bool { return (t.Kind == "sit" || t.Kind == "ip6tnl") && !usual(t) })
	}
	for _, t := range all {
		switch {
		case !t.Up:
			note("ip link set dev "+t.Name+" up", "%s (%s) is down", t.Name, t.Kind)
		case t.Remote.IsValid():
			note(fmt.Sprintf("ip link del %s; ", t.Name)+makeTunnel(is6, dip), "%s (%s) takes packets from %s only, but muxes send from many addresses", t.Name, t.Kind, t.Remote)
		case t.Local.IsValid() && !slices.ContainsFunc(own, func(a Address) bool { return a.Prefix.Addr() == t.Local }):
			note(fmt.Sprintf("ip link del %s; ", t.Name)+makeTunnel(is6, dip), "%s (%s) takes packets to %s, which is no address of this machine", t.Name, t.Kind, t.Local)
		default:
			to := "any address of this machine"
			if t.Local.IsValid() {
				to = t.Local.String()
			}
			e.ok(check, "%s (%s) takes what comes to %s", t.Name, t.Kind, to)
			return t.Name
		}
	}
	e.results = append(e.results, wrong)
	return ""
}

// makeTunnel returns the command that creates the device of docs/ops/plain-servers.md for packets
// of a family.
func makeTunnel(is6 bool, dip string) string {
	name, kind := "shunt4", "ipip"
	if is6 {
		name, kind = "shunt6", "ip6tnl mode any"
	}
	return fmt.Sprintf("ip link add name %s type %s local %s remote any; ip link set dev %[1]s up", name, kind, dip)
}

// dip returns the first address of the interface of a family, else a placeholder.
func (e *examination) dip(own []Address, is6 bool) string {
	for _, a := range own {
		if a.Device == e.o.Interface && a.Prefix.Addr().Is6() == is6 && !a.Prefix.Addr().IsLinkLocalUnicast() {
			return a.Prefix.Addr().String()
		}
	}
	return "DIP"
}

// gue checks that the kernel listens on GUE's port.
func (e *examination) gue(family string, is6 bool) {
	cure := fmt.Sprintf("ip fou add port %d gue", guePort)
	if is6 {
		cure = fmt.Sprintf("ip -6 fou add port %d gue", guePort)
	}
	switch takes, err := e.m.TakesGUE(is6); {
	case err != nil:
		e.fail("gue", "modprobe fou fou6, on a kernel built with CONFIG_NET_FOU and CONFIG_IPV6_FOU; or encap: ipip", "%v", err)
	case !takes:
		e.fail("gue", cure, "the kernel takes no GUE at UDP port %d over %s", guePort, family)
	default:
		e.ok("gue", "the kernel takes GUE at UDP port %d over %s", guePort, family)
	}
}

// conf returns the effective setting of an interface: the larger of its own IPv4 setting and that
// for all.
func (e *examination) conf(check, key, device string) (int, bool) {
	most := 0
	for _, dev := range []string{"all", device} {
		text, err := e.m.Sysctl("net/ipv4/conf/" + dev + "/" + key)
		n, bad := strconv.Atoi(text)
		if err == nil {
			err = bad
		}
		if err != nil {
			e.fail(check, "mount -t proc proc /proc", "%v", err)
			return 0, false
		}
		most = max(most, n)
	}
	return most, true
}

// setConf returns the command that sets an IPv4 setting of an interface, whose name may have dots.
func setConf(device, key string, value int) string {
	return fmt.Sprintf("sysctl -w net/ipv4/conf/%s/%s=%d", device, key, value)
}

// inwards checks rp_filter, because decapsulated packets have sources that are reached by another
// device, and the outer sources are those of muxes. 1 is strict, 2 loose (RFC 3704 section 2).
func (e *examination) inwards(tunnel string, own []Address) {
	const check, key = "rp_filter", "rp_filter"
	inner, ok := e.conf(check, key, tunnel)
	if !ok {
		return
	}
	addressed := slices.ContainsFunc(own, func(a Address) bool { return a.Device == tunnel && a.Prefix.Addr().Is4() })
	switch {
	case inner == 1:
		e.fail(check, setConf(tunnel, key, 2), "strict on %s: clients are reached by %s, what comes from them out of the tunnel is dropped", tunnel, e.o.Interface)
	case inner != 0 && !addressed:
		e.fail(check, fmt.Sprintf("ip addr add %s/32 dev %s scope host", e.dip(own, false), tunnel), "%d on %s, which has no IPv4 address: there the kernel takes it for strict", inner, tunnel)
	default:
		e.ok(check, "%d on %s", inner, tunnel)
	}
	outer, ok := e.conf(check, key, e.o.Interface)
	if !ok || outer != 1 {
		return
	}
	for _, p := range e.o.TunnelSources {
		if !p.Addr().Is4() {
			continue
		}
		if w, err := e.m.Way(netip.Addr{}, p.Masked().Addr().Next()); err != nil || w.Device != e.o.Interface {
			e.fail(check, setConf(e.o.Interface, key, 2), "strict on %[1]s, and the way back to tunnel source %[2]s is not by %[1]s: tunnel packets are dropped", e.o.Interface, p)
		}
	}
}

// arp checks arp_ignore and arp_announce (ip-sysctl), because by default the kernel replies for the
// addresses of all its devices on each device, and uses any source address in its own requests.
func (e *examination) arp(vips []netip.Addr, own []Address) {
	inside := slices.ContainsFunc(vips, func(vip netip.Addr) bool {
		return slices.ContainsFunc(own, func(a Address) bool { return a.Device == e.o.Interface && a.Prefix.Contains(vip) })
	})
	note := e.warn
	if inside {
		note = e.fail
	}
	for _, c := range []struct {
		key   string
		least int
		found string
	}{
		{"arp_ignore", 1, "%[1]s answers ARP for VIPs, as each of their servers would"},
		{"arp_announce", 2, "%[1]s asks for its neighbours in the name of VIPs, which they then look for here"},
	} {
		n, ok := e.conf(c.key, c.key, e.o.Interface)
		switch {
		case !ok:
		case n < c.least:
			note(c.key, setConf(e.o.Interface, c.key, c.least), c.found, e.o.Interface)
		default:
			e.ok(c.key, "%d on %s", n, e.o.Interface)
		}
	}
}

// answers checks that there is a route to clients, and that it advertises no larger segments than
// fit the tunnel.
func (e *examination) answers(vip netip.Addr, own []Address) {
	if !slices.ContainsFunc(own, func(a Address) bool { return a.Prefix.Addr() == vip }) {
		return
	}
	client, header := someClient4, ip4Header
	if vip.Is6() {
		client, header = someClient6, ip6Header
	}
	w, err := e.m.Way(vip, client)
	if err != nil {
		e.fail("route", fmt.Sprintf("ip route add default via ROUTER dev %s", e.o.Interface), "no way from %s to clients: %v", vip, err)
		return
	}
	fits := e.o.MTU - 2*header - tcpHeader
	if e.o.GUE {
		fits -= gueHeader
	}
	mss := w.AdvMSS
	if mss == 0 {
		mss = w.MTU - header - tcpHeader
	}
	if mss > fits {
		rule := "ip"
		if vip.Is6() {
			rule = "ip -6"
		}
		e.warn("mss", fmt.Sprintf("%s route change default … advmss %d", rule, fits), "%s advertises %d, %d fit the tunnel: clients' larger segments wait for ICMP, unless nftables clamps", vip, mss, fits)
		return
	}
	e.ok("mss", "%s advertises %d, %d fit the tunnel", vip, mss, fits)
}

// unneeded checks that a server does not forward, because one that does would send packets for a
// VIP that it lacks back to the muxes.
func (e *examination) unneeded(check, key string, of bool) {
	if !of {
		return
	}
	dotted := strings.ReplaceAll(key, "/", ".")
	switch value, err := e.m.Sysctl(key); {
	case err != nil:
		e.fail(check, "mount -t proc proc /proc", "%v", err)
	case value != "0":
		e.warn(check, "sysctl -w "+dotted+"=0, unless this machine routes for others", "%s is %s and need not be: what comes for a VIP that is not here goes back to the muxes", dotted, value)
	default:
		e.ok(check, "%s is 0: not needed", dotted)
	}
}

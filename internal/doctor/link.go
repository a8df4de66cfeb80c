package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// Sizes of tunnel headers and packets in bytes.
const (
	// maxOuter is the longest outer header, IPv6 (RFC 8200 section 3).
	maxOuter = 40
	// minInner is the minimum MTU of IPv6 inside the tunnel (RFC 8200 section 5).
	minInner = 1280
)

// muxProgram is the name of Shunt's own XDP program.
const muxProgram = "mux"

// link checks the interface of the role.
func (e *examination) link() {
	const check = "interface"
	i, err := e.m.Interface(e.o.Interface)
	if err != nil {
		e.fail(check, "name one that there is: shunt doctor --interface NAME", "%v", err)
		return
	}
	if !i.Up {
		e.fail(check, "ip link set dev "+e.o.Interface+" up", "%s is down", e.o.Interface)
	} else {
		e.ok(check, "%s is up, driver %s", e.o.Interface, i.Driver)
	}
	e.mtu(i)
	e.reversePath()
	if e.o.Role != Mux {
		return
	}
	e.xdp()
	if i.Driver == "veth" {
		e.veth()
		return
	}
	e.lro()
}

// mtu checks the MTU: a tunnel needs 20 or 40 bytes of it. Hosts clamp TCP segments to the rest.
func (e *examination) mtu(i Interface) {
	const check = "mtu"
	raise := func(mtu int) string { return fmt.Sprintf("ip link set dev %s mtu %d", e.o.Interface, mtu) }
	switch {
	case i.MTU < minInner+maxOuter:
		e.fail(check, raise(max(e.o.MTU, minInner+maxOuter)), "%d, must be at least %d: an IPv6 packet of %d bytes and %d of the tunnel", i.MTU, minInner+maxOuter, minInner, maxOuter)
	case i.MTU < e.o.MTU:
		e.fail(check, raise(e.o.MTU), "%d, must be at least the network's %d", i.MTU, e.o.MTU)
	case i.MTU < e.o.MTU+maxOuter:
		e.warn(check, raise(e.o.MTU+maxOuter)+", on every device of the underlay", "%d: inside the tunnel %d are left; TCP is clamped to that, larger datagrams are refused, and IPv4 clients that fragment them are not told", i.MTU, i.MTU-maxOuter)
	default:
		e.ok(check, "%d, %d more than the network's", i.MTU, i.MTU-e.o.MTU)
	}
}

// reversePath checks rp_filter, because tunnel packets have outer sources without a route, and
// replies leave by another path. The larger of the settings for all and for the interface applies;
// 1 is strict (RFC 3704 section 2.2).
func (e *examination) reversePath() {
	const check = "rp_filter"
	strict := []string{}
	effective := 0
	for _, dev := range []string{"all", e.o.Interface} {
		value, err := e.m.Sysctl("net/ipv4/conf/" + dev + "/rp_filter")
		if err != nil {
			e.fail(check, "mount -t proc proc /proc", "%v", err)
			return
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			e.fail(check, "sysctl -w net.ipv4.conf."+dev+".rp_filter=0", "net.ipv4.conf.%s.rp_filter is %q, must be 0", dev, value)
			return
		}
		if n == 1 {
			strict = append(strict, "net.ipv4.conf."+dev+".rp_filter")
		}
		effective = max(effective, n)
	}
	if effective != 1 {
		e.ok(check, "%d on %s", effective, e.o.Interface)
		return
	}
	e.fail(check, "sysctl -w "+strings.Join(strict, "=0 ")+"=0", "%s is 1, must be 0: packets whose source is not reached by %s are dropped", strings.Join(strict, " and "), e.o.Interface)
}

// xdp checks whether the driver supports native XDP, and whether another program is attached.
func (e *examination) xdp() {
	const check = "native xdp"
	x, err := e.m.XDP(e.o.Interface)
	switch {
	case err != nil:
		e.warn(check, "try it: shunt mux --xdp-mode native …", "cannot be asked: %v", err)
	case !x.Native:
		e.fail(check, "use another NIC, or run the mux slower with --xdp-mode generic", "the driver of %s has none", e.o.Interface)
	case x.Attached != "" && x.Attached != muxProgram:
		e.warn(check, "ip link set dev "+e.o.Interface+" xdp off", "supported, but program %s is attached", x.Attached)
	case x.Attached != "":
		e.ok(check, "supported, %s is attached", x.Attached)
	default:
		e.ok(check, "supported by the driver")
	}
}

// lro checks large receive offload, because aggregated packets are no frames, and drivers refuse
// native XDP with it.
func (e *examination) lro() {
	on, err := e.m.LRO(e.o.Interface)
	switch {
	case err != nil:
		e.ok("lro", "the driver has none")
	case on:
		e.fail("lro", "ethtool -K "+e.o.Interface+" lro off", "on, must be off for native XDP")
	default:
		e.ok("lro", "off")
	}
}

// veth checks the other end, which must complete checksums before XDP sees the frames, and must
// poll for those that XDP sends.
func (e *examination) veth() {
	const check = "veth peer"
	peer, reachable, err := e.m.VethPeer(e.o.Interface)
	switch {
	case err != nil:
		e.fail(check, "ethtool -K PEER tx off gro on", "%v", err)
		return
	case !reachable:
		e.warn(check, "where the other end is: ethtool -K PEER tx off gro on", "the other end of %s is not in a named namespace, cannot be checked", e.o.Interface)
		return
	}
	var wrong, cure []string
	if peer.TxChecksum {
		wrong, cure = append(wrong, "leaves checksums unfinished (tx on)"), append(cure, "tx off")
	}
	if !peer.GRO {
		wrong, cure = append(wrong, "drops what XDP sends (gro off)"), append(cure, "gro on")
	}
	switch {
	case len(wrong) > 0:
		e.fail(check, fmt.Sprintf("%sethtool -K %s %s", peer.Command, peer.Name, strings.Join(cure, " ")), "%s %s", peer.Name, strings.Join(wrong, " and "))
	default:
		e.ok(check, "%s has tx off and gro on", peer.Name)
	}
}

package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Tunnel is a kernel device that decapsulates IP packets from IP packets: ipip, sit or ip6tnl.
type Tunnel struct {
	Name, Kind string
	Up         bool
	// Local and Remote are the outer addresses that it accepts packets to and from; invalid for
	// any.
	Local, Remote netip.Addr
	// Inner4 and Inner6 report which inner packets it decapsulates.
	Inner4, Inner6 bool
}

// FindTunnels lists the tunnel devices of the current namespace.
func FindTunnels() ([]Tunnel, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var out []Tunnel
	for _, l := range links {
		t := Tunnel{Name: l.Attrs().Name, Kind: l.Type(), Up: l.Attrs().Flags&net.FlagUp != 0}
		switch l := l.(type) {
		case *netlink.Iptun:
			t.ends(l.Local, l.Remote)
			t.carry(l.Proto)
		case *netlink.Sittun:
			t.ends(l.Local, l.Remote)
			t.carry(l.Proto)
		case *netlink.Ip6tnl:
			t.ends(l.Local, l.Remote)
			t.carry(l.Proto)
		default:
			continue
		}
		out = append(out, t)
	}
	return out, nil
}

// ends sets the outer addresses.
func (t *Tunnel) ends(local, remote net.IP) {
	known := func(ip net.IP) netip.Addr {
		a, ok := netip.AddrFromSlice(ip)
		if a = a.Unmap(); !ok || a.IsUnspecified() {
			return netip.Addr{}
		}
		return a
	}
	t.Local, t.Remote = known(local), known(remote)
}

// carry sets the inner protocol; 0 is any.
func (t *Tunnel) carry(protocol uint8) {
	t.Inner4 = protocol == 0 || protocol == unix.IPPROTO_IPIP
	t.Inner6 = protocol == unix.IPPROTO_IPV6 || protocol == 0 && t.Kind != "ipip"
}

// OwnAddress is an address of this machine.
type OwnAddress struct {
	// Prefix is the address with its configured prefix length.
	Prefix netip.Prefix
	Device string
}

// OwnAddresses lists the addresses of all devices of the current namespace.
func OwnAddresses() ([]OwnAddress, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var out []OwnAddress
	for _, l := range links {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("read addresses of interface %s: %w", l.Attrs().Name, err)
		}
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			bits, _ := a.Mask.Size()
			if ok {
				out = append(out, OwnAddress{Prefix: netip.PrefixFrom(ip.Unmap(), bits), Device: l.Attrs().Name})
			}
		}
	}
	return out, nil
}

// Way is the device and MTU that packets leave with.
type Way struct {
	Device string
	// MTU of the device, or that of the route if it is less.
	MTU int
	// AdvMSS is the MSS that the route makes connections advertise; 0: derived from the MTU.
	AdvMSS int
}

// FindWay looks up the route of packets to an address. from is the source address, an address of
// this machine; invalid: any.
func FindWay(from, to netip.Addr) (Way, error) {
	options := &netlink.RouteGetOptions{}
	if from.IsValid() {
		options.SrcAddr = from.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), options)
	if err != nil || len(routes) == 0 {
		return Way{}, fmt.Errorf("look up the route to %s: %w", to, err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return Way{}, fmt.Errorf("read the device of the route to %s: %w", to, err)
	}
	w := Way{Device: link.Attrs().Name, MTU: link.Attrs().MTU, AdvMSS: routes[0].AdvMSS}
	if mtu := routes[0].MTU; mtu > 0 && mtu < w.MTU {
		w.MTU = mtu
	}
	return w, nil
}

// RouteDevices returns the devices of all next hops of the route to an address, each once. It
// returns an error if there is no route.
func RouteDevices(to netip.Addr) ([]string, error) {
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		return nil, fmt.Errorf("look up the route to %s: %w", to, err)
	}
	var out []string
	for _, r := range routes {
		hops := []int{r.LinkIndex}
		if len(r.MultiPath) > 0 {
			hops = nil
			for _, h := range r.MultiPath {
				hops = append(hops, h.LinkIndex)
			}
		}
		for _, index := range hops {
			link, err := netlink.LinkByIndex(index)
			if err != nil {
				return nil, fmt.Errorf("read a device of the route to %s: %w", to, err)
			}
			if name := link.Attrs().Name; !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// fouGUE is FOU_ENCAP_GUE (linux/fou.h).
const fouGUE = 2

// TakesGUE reports whether the kernel decapsulates GUE at a UDP port, over IPv6 or IPv4 (foo over
// UDP).
func TakesGUE(port int, is6 bool) (bool, error) {
	family := unix.AF_INET
	if is6 {
		family = unix.AF_INET6
	}
	ports, err := netlink.FouList(family)
	if err != nil {
		return false, fmt.Errorf("list ports of foo over UDP: %w", err)
	}
	for _, p := range ports {
		if p.Family == family && p.Port == port && p.EncapType == fouGUE {
			return true, nil
		}
	}
	return false, nil
}

package netdev

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// vethQueues is the number of queues of every veth in each direction. XDP_TX and redirects need one
// per forwarding CPU, and two are enough to test that.
const vethQueues = 2

// VethEnd is one end of a veth pair.
type VethEnd struct {
	Namespace *Namespace
	Name      string
}

// AddVeth creates a veth pair across two namespaces, with both ends up.
func AddVeth(a, b VethEnd, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a.Name
	attrs.MTU = mtu
	attrs.NumTxQueues = vethQueues
	attrs.NumRxQueues = vethQueues
	veth := netlink.NewVeth(attrs)
	veth.PeerName = b.Name
	veth.PeerNamespace = netlink.NsFd(b.Namespace.fd)
	if err := a.Namespace.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s/%s to %s/%s: %w", a.Namespace.Name, a.Name, b.Namespace.Name, b.Name, err)
	}
	for _, end := range []VethEnd{a, b} {
		if err := end.Namespace.SetUp(end.Name, true); err != nil {
			return err
		}
	}
	return nil
}

// AddBridge creates a bridge without spanning tree and multicast snooping, and sets it up.
func (n *Namespace) AddBridge(name string, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	attrs.MTU = mtu
	snooping := false
	if err := n.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("add bridge %s/%s: %w", n.Name, name, err)
	}
	return n.SetUp(name, true)
}

// AddPort adds a device to a bridge. Frames to addresses that the bridge has not learned are not
// flooded to it, as a network card would filter them, because programs on a veth receive every
// frame, whatever its destination.
func (n *Namespace) AddPort(bridge, port string) error {
	br, err := n.link(bridge)
	if err != nil {
		return err
	}
	dev, err := n.link(port)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetMasterByIndex(dev, br.Attrs().Index); err != nil {
		return fmt.Errorf("add port %s/%s to bridge %s: %w", n.Name, port, bridge, err)
	}
	if err := n.nl.LinkSetFlood(dev, false); err != nil {
		return fmt.Errorf("stop flooding to port %s/%s: %w", n.Name, port, err)
	}
	return nil
}

// SetUp sets a device up or down.
func (n *Namespace) SetUp(dev string, up bool) error {
	link, err := n.link(dev)
	if err != nil {
		return err
	}
	set, state := n.nl.LinkSetUp, "up"
	if !up {
		set, state = n.nl.LinkSetDown, "down"
	}
	if err := set(link); err != nil {
		return fmt.Errorf("set %s/%s %s: %w", n.Name, dev, state, err)
	}
	return nil
}

// AddAddress adds an address; an existing one is no error. IPv6 addresses are usable immediately
// (no DAD).
func (n *Namespace) AddAddress(dev string, addr netip.Prefix) error {
	link, err := n.link(dev)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: ipNet(addr)}
	if addr.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := n.nl.AddrReplace(link, a); err != nil {
		return fmt.Errorf("add address %s to %s/%s: %w", addr, n.Name, dev, err)
	}
	return nil
}

// DeleteAddress removes an address.
func (n *Namespace) DeleteAddress(dev string, addr netip.Prefix) error {
	link, err := n.link(dev)
	if err != nil {
		return err
	}
	if err := n.nl.AddrDel(link, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
		return fmt.Errorf("delete address %s of %s/%s: %w", addr, n.Name, dev, err)
	}
	return nil
}

// Route is one route of the main table. A zero Via is a route on the link.
type Route struct {
	Destination netip.Prefix
	Via         netip.Addr
	Device      string
	// Features are bits RTAX_FEATURE_* of the route's connections (linux/rtnetlink.h); 0: none.
	Features uint32
}

// FeatureMicroseconds makes the kernel count microseconds in TCP timestamps
// (RTAX_FEATURE_TCP_USEC_TS, Linux 6.7).
const FeatureMicroseconds = 1 << 4

// AddRoute adds or replaces a route. Via need not be inside a prefix of the device.
func (n *Namespace) AddRoute(r Route) error {
	link, err := n.link(r.Device)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(r.Destination), Features: int(r.Features)}
	if r.Via.IsValid() {
		route.Gw = r.Via.AsSlice()
		route.SetFlag(netlink.FLAG_ONLINK)
	} else {
		route.Scope = netlink.SCOPE_LINK
	}
	if err := n.nl.RouteReplace(route); err != nil {
		return fmt.Errorf("add route %s via %s dev %s/%s: %w", r.Destination, r.Via, n.Name, r.Device, err)
	}
	return nil
}

// AddLocal makes all addresses of a prefix local to the namespace.
func (n *Namespace) AddLocal(p netip.Prefix) error {
	link, err := n.link("lo")
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(p), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST}
	if err := n.nl.RouteReplace(route); err != nil {
		return fmt.Errorf("make %s local in %s: %w", p, n.Name, err)
	}
	return nil
}

// Routes lists the next hops of the route to exactly the prefix; none if there is no such route.
func (n *Namespace) Routes(p netip.Prefix) ([]netip.Addr, error) {
	family := netlink.FAMILY_V4
	if p.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	routes, err := n.nl.RouteListFiltered(family, &netlink.Route{Dst: ipNet(p)}, netlink.RT_FILTER_DST)
	if err != nil {
		return nil, fmt.Errorf("list routes to %s in %s: %w", p, n.Name, err)
	}
	var hops []netip.Addr
	add := func(ip net.IP) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			hops = append(hops, a.Unmap())
		}
	}
	for _, r := range routes {
		add(r.Gw)
		for _, hop := range r.MultiPath {
			add(hop.Gw)
		}
	}
	return hops, nil
}

func (n *Namespace) link(name string) (netlink.Link, error) {
	link, err := n.nl.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find device %s/%s: %w", n.Name, name, err)
	}
	return link, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

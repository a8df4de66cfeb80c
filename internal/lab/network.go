package lab

import (
	"fmt"
	"net/netip"

	"github.com/shuntlb/shunt/internal/netdev"
)

// Uplink is the name of the device towards the fabric on every node except the router.
const Uplink = "eth0"

// Ports from FirstNamedPort to LastNamedPort are excluded from the clients' ephemeral range. Tests
// bind them by number.
const (
	FirstNamedPort = 20_000
	LastNamedPort  = 23_999
)

// Bridges of the router.
const (
	bridgeClients  = "clients"
	bridgeMuxes    = "muxes"
	bridgeManagers = "managers"
)

// gatewayVM6 is the VMs' IPv6 gateway: every host has it on each VM's link. IPv4 goes through the
// host's underlay address, for which the host answers ARP on any link.
var gatewayVM6 = linkLocal

// linkLocal is the gateway's IPv6 link-local address on every link.
var linkLocal = netip.MustParsePrefix("fe80::1/64")

// network builds the links of one lab. It owns the open handles until close.
type network struct {
	lab        string
	mtu        int
	namespaces map[string]*netdev.Namespace // by node name
}

// buildNetwork makes all namespaces with their links, addresses and routes.
func buildNetwork(t Topology) error {
	n := &network{lab: t.Name, mtu: t.MTU, namespaces: map[string]*netdev.Namespace{}}
	defer n.close()
	for _, node := range t.Nodes() {
		if err := n.create(node); err != nil {
			return err
		}
	}
	router := n.namespaces["router1"]
	if err := n.buildBridges(router); err != nil {
		return err
	}
	for _, node := range t.Nodes() {
		if err := n.connect(router, node); err != nil {
			return fmt.Errorf("connect %s: %w", node.Name, err)
		}
	}
	return nil
}

func (n *network) close() {
	for _, ns := range n.namespaces {
		ns.Close()
	}
}

func (n *network) create(node Node) error {
	name := node.Namespace(n.lab)
	if err := netdev.CreateNamespace(name); err != nil {
		return err
	}
	// Set them before the first device is made, because devices inherit the defaults.
	if err := netdev.SetSysctls(name, sysctls(node.Kind)); err != nil {
		return err
	}
	ns, err := netdev.OpenNamespace(name)
	if err != nil {
		return err
	}
	n.namespaces[node.Name] = ns
	return nil
}

func (n *network) buildBridges(router *netdev.Namespace) error {
	for bridge, addresses := range map[string]Pair{
		bridgeClients:  routerOnClients(),
		bridgeMuxes:    routerOnMuxes(),
		bridgeManagers: routerOnManagers(),
	} {
		if err := router.AddBridge(bridge, n.mtu); err != nil {
			return err
		}
		if err := addAddresses(router, bridge, addresses); err != nil {
			return err
		}
		// FRR does not announce IPv6 from a device without a link-local address, and a new bridge
		// has none.
		if err := router.AddAddress(bridge, linkLocal); err != nil {
			return err
		}
	}
	return nil
}

// connect gives a node its uplink, addresses and routes.
func (n *network) connect(router *netdev.Namespace, node Node) error {
	switch node.Kind {
	case KindClient:
		return n.connectLAN(router, node, bridgeClients, routerOnClients())
	case KindManager:
		return n.connectLAN(router, node, bridgeManagers, routerOnManagers())
	case KindMux:
		if err := n.connectLAN(router, node, bridgeMuxes, routerOnMuxes()); err != nil {
			return err
		}
		return peerOfXDP(router, node.Name)
	case KindHost:
		return n.connectHost(router, node)
	case KindVM:
		return n.connectVM(router, node)
	}
	return nil
}

// connectLAN connects a node to a bridge of the router, where the port has the node's name.
func (n *network) connectLAN(router *netdev.Namespace, node Node, bridge string, gateway Pair) error {
	ns := n.namespaces[node.Name]
	err := netdev.AddVeth(netdev.VethEnd{Namespace: ns, Name: Uplink}, netdev.VethEnd{Namespace: router, Name: node.Name}, n.mtu)
	if err != nil {
		return err
	}
	if err := router.AddPort(bridge, node.Name); err != nil {
		return err
	}
	if err := addAddresses(ns, Uplink, node.Addresses()); err != nil {
		return err
	}
	return addDefaults(ns, gateway)
}

// connectHost makes the point-to-point link of a host. Its device at the router has the host's
// name.
func (n *network) connectHost(router *netdev.Namespace, node Node) error {
	ns := n.namespaces[node.Name]
	err := netdev.AddVeth(netdev.VethEnd{Namespace: ns, Name: Uplink}, netdev.VethEnd{Namespace: router, Name: node.Name}, n.mtu)
	if err != nil {
		return err
	}
	gateway := routerOnHost(node.Index)
	if err := addAddresses(router, node.Name, gateway); err != nil {
		return err
	}
	if err := addAddresses(ns, Uplink, node.Addresses()); err != nil {
		return err
	}
	return addDefaults(ns, gateway)
}

// connectVM makes the link of a VM to its host, and the routes to it at the host and at the router.
func (n *network) connectVM(router *netdev.Namespace, node Node) error {
	hostNode := Node{Name: fmt.Sprintf("host%d", node.Index), Kind: KindHost, Index: node.Index}
	host, ns, link := n.namespaces[hostNode.Name], n.namespaces[node.Name], fmt.Sprintf("vm%d", node.VM)
	err := netdev.AddVeth(netdev.VethEnd{Namespace: ns, Name: Uplink}, netdev.VethEnd{Namespace: host, Name: link}, n.mtu)
	if err != nil {
		return err
	}
	if err := host.AddAddress(link, gatewayVM6); err != nil {
		return err
	}
	if err := addAddresses(ns, Uplink, node.Addresses()); err != nil {
		return err
	}
	via := hostNode.Addresses()
	if err := addDefaults(ns, Pair{V4: via.V4, V6: gatewayVM6}); err != nil {
		return err
	}
	return node.Addresses().each(func(dip netip.Prefix) error {
		if err := host.AddRoute(netdev.Route{Destination: dip, Device: link}); err != nil {
			return err
		}
		gateway := via.V4.Addr()
		if dip.Addr().Is6() {
			gateway = via.V6.Addr()
		}
		return router.AddRoute(netdev.Route{Destination: dip, Via: gateway, Device: hostNode.Name})
	})
}

// peerOfXDP prepares the fabric's end of a link whose other end runs XDP. It makes checksums
// complete when frames leave it, and enables polling, without which frames redirected into it would
// be lost.
func peerOfXDP(ns *netdev.Namespace, dev string) error {
	if err := ns.SetOffload(dev, netdev.OffloadTxChecksum, false); err != nil {
		return err
	}
	return ns.SetOffload(dev, netdev.OffloadGRO, true)
}

func addAddresses(ns *netdev.Namespace, dev string, p Pair) error {
	return p.each(func(a netip.Prefix) error { return ns.AddAddress(dev, a) })
}

// addDefaults adds the default routes through the uplink.
func addDefaults(ns *netdev.Namespace, gateway Pair) error {
	return gateway.each(func(g netip.Prefix) error {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if g.Addr().Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return ns.AddRoute(netdev.Route{Destination: all, Via: g.Addr(), Device: Uplink})
	})
}

// sysctls returns the settings of a kind of node.
func sysctls(kind Kind) []netdev.Sysctl {
	settings := []netdev.Sysctl{
		{Key: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
		{Key: "net/ipv6/conf/default/disable_ipv6", Value: "0"},
		{Key: "net/ipv6/conf/all/accept_dad", Value: "0"},
		{Key: "net/ipv6/conf/default/accept_dad", Value: "0"},
		{Key: "net/ipv6/conf/default/accept_ra", Value: "0"},
		{Key: "net/ipv6/conf/default/router_solicitations", Value: "0"},
		{Key: "net/ipv6/conf/all/keep_addr_on_down", Value: "1"},
		{Key: "net/ipv6/conf/default/keep_addr_on_down", Value: "1"},
		{Key: "net/ipv4/conf/all/rp_filter", Value: "0"},
		{Key: "net/ipv4/conf/default/rp_filter", Value: "0"},
		{Key: "net/ipv4/conf/all/send_redirects", Value: "0"},
		{Key: "net/ipv4/conf/default/send_redirects", Value: "0"},
		{Key: "net/ipv4/conf/all/accept_redirects", Value: "0"},
		{Key: "net/ipv4/ping_group_range", Value: "0 2147483647"},
	}
	forward := []netdev.Sysctl{
		{Key: "net/ipv4/ip_forward", Value: "1"},
		{Key: "net/ipv6/conf/all/forwarding", Value: "1"},
		{Key: "net/ipv6/conf/default/forwarding", Value: "1"},
	}
	switch kind {
	case KindRouter:
		settings = append(settings, forward...)
		settings = append(settings,
			// Hash policy 1 is L4: addresses and ports.
			netdev.Sysctl{Key: "net/ipv4/fib_multipath_hash_policy", Value: "1"},
			netdev.Sysctl{Key: "net/ipv6/fib_multipath_hash_policy", Value: "1"})
	case KindMux:
		// accept_local, because packets that XDP encapsulated and passed to the kernel come from
		// the mux's own address.
		settings = append(settings, forward...)
		settings = append(settings,
			netdev.Sysctl{Key: "net/ipv4/conf/all/accept_local", Value: "1"},
			netdev.Sysctl{Key: "net/ipv4/conf/default/accept_local", Value: "1"})
	case KindHost:
		settings = append(settings, forward...)
	case KindClient:
		// Enough ports for a load generator that opens a connection per request.
		settings = append(settings,
			netdev.Sysctl{Key: "net/ipv4/ip_local_port_range", Value: "10000 65000"},
			netdev.Sysctl{Key: "net/ipv4/ip_local_reserved_ports", Value: fmt.Sprintf("%d-%d", FirstNamedPort, LastNamedPort)},
			netdev.Sysctl{Key: "net/ipv4/tcp_tw_reuse", Value: "1"})
	}
	return settings
}

package lab

import (
	"fmt"
	"net/netip"
)

// Kind is the type of a lab node.
type Kind string

// The kinds of nodes.
const (
	KindClient  Kind = "client"
	KindRouter  Kind = "router"
	KindMux     Kind = "mux"
	KindHost    Kind = "host"
	KindVM      Kind = "vm"
	KindManager Kind = "manager"
)

// Node is one machine of a lab: one namespace.
type Node struct {
	Name  string // "mux1", "host1-vm1"
	Kind  Kind
	Index int // from 1; of a VM: its host's
	VM    int // from 1; 0 when the node is no VM
}

// Nodes lists every node of the topology: the router first, VMs after their host.
func (t Topology) Nodes() []Node {
	var nodes []Node
	add := func(kind Kind, count int) {
		for i := 1; i <= count; i++ {
			nodes = append(nodes, Node{Name: fmt.Sprintf("%s%d", kind, i), Kind: kind, Index: i})
			for j := 1; kind == KindHost && j <= t.Hosts.VMs; j++ {
				nodes = append(nodes, Node{Name: VMName(i, j), Kind: KindVM, Index: i, VM: j})
			}
		}
	}
	add(KindRouter, t.Routers.Count)
	add(KindManager, t.Managers)
	add(KindClient, t.Clients)
	add(KindMux, t.Muxes)
	add(KindHost, t.Hosts.Count)
	return nodes
}

// VMName returns the name of VM j on host i.
func VMName(i, j int) string { return fmt.Sprintf("host%d-vm%d", i, j) }

// Namespace returns the name of the node's network namespace in the named lab.
func (n Node) Namespace(lab string) string { return lab + "-" + n.Name }

// Addresses returns the node's own addresses, at which other nodes reach it. A router has one on
// each link and none here.
func (n Node) Addresses() Pair {
	switch n.Kind {
	case KindClient:
		return ClientAddresses(n.Index)
	case KindMux:
		return MuxAddresses(n.Index)
	case KindHost:
		return HostAddresses(n.Index)
	case KindVM:
		return VMAddresses(n.Index, n.VM)
	case KindManager:
		return ManagerAddress(n.Index)
	}
	return Pair{}
}

// Find returns the named node of the topology.
func (t Topology) Find(name string) (Node, error) {
	for _, n := range t.Nodes() {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("node: %q: lab %s has router1, manager1 to manager%d, client1 to client%d, mux1 to mux%d, host1 to host%d, host1-vm1 to %s",
		name, t.Name, t.Managers, t.Clients, t.Muxes, t.Hosts.Count, VMName(t.Hosts.Count, t.Hosts.VMs))
}

// each calls f with the prefixes that are set.
func (p Pair) each(f func(netip.Prefix) error) error {
	for _, prefix := range []netip.Prefix{p.V4, p.V6} {
		if !prefix.IsValid() {
			continue
		}
		if err := f(prefix); err != nil {
			return err
		}
	}
	return nil
}

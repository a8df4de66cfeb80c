package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
)

// startShunt starts the managers, stores the network and the nodes, starts the agents and waits
// until each has applied the newest plan and every BGP session is established.
func (l *Lab) startShunt(ctx context.Context) error {
	if err := l.startManagers(ctx); err != nil {
		return err
	}
	client, err := l.Client()
	if err != nil {
		return err
	}
	if _, err := client.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: l.objects()})); err != nil {
		return l.withLog("manager1", fmt.Errorf("apply network and nodes: %w", err))
	}
	var steps []func(context.Context) error
	for _, n := range l.Topology.Nodes() {
		if n.Kind == KindMux || n.Kind == KindHost {
			steps = append(steps, func(ctx context.Context) error { return l.join(ctx, client, n) })
		}
	}
	if err := together(ctx, steps...); err != nil {
		return err
	}
	l.say("agents: %d muxes and %d hosts started", l.Topology.Muxes, l.Topology.Hosts.Count)
	if err := l.WaitReady(ctx); err != nil {
		return err
	}
	l.say("agents: all synced, all BGP sessions established")
	return nil
}

// MetricsPort is where managers, muxes and hosts of a lab serve metrics on their own address.
const MetricsPort = 9485

func metricsAddress(n Node) string {
	return netip.AddrPortFrom(n.Addresses().V4.Addr(), MetricsPort).String()
}

// died returns an error when the recorded process of a node no longer runs.
func (l *Lab) died(node, name string) error {
	processes, err := l.Processes()
	if err != nil {
		return err
	}
	for _, p := range processes {
		if p.Node == node && p.Name == name && !p.Alive() {
			return fmt.Errorf("%s on %s ended", name, node)
		}
	}
	return nil
}

// objects returns the Network and the Nodes of the topology.
func (l *Lab) objects() []*apiv1.Object {
	objects := []*apiv1.Object{{Kind: &apiv1.Object_Network{Network: &apiv1.Network{
		Name:     "lab",
		Vips:     []string{VIPs4.String(), VIPs6.String()},
		Underlay: []string{Muxes4.String(), Muxes6.String(), Hosts4.String(), Hosts6.String()},
		Mtu:      uint32(l.Topology.MTU),
	}}}}
	for _, n := range l.Topology.Nodes() {
		if n.Kind != KindMux && n.Kind != KindHost {
			continue
		}
		a := n.Addresses()
		node := &apiv1.Node{
			Name:    n.Name,
			Role:    string(n.Kind),
			Address: []string{a.V4.Addr().String(), a.V6.Addr().String()},
		}
		if n.Kind == KindMux {
			node.Bgp = l.bgp()
			nat := NATAddresses(n.Index)
			node.Nat = &apiv1.NAT{Addresses: []string{nat.V4.Addr().String(), nat.V6.Addr().String()}}
		}
		objects = append(objects, &apiv1.Object{Kind: &apiv1.Object_Node{Node: node}})
	}
	return objects
}

// bgp returns the BGP configuration of every mux: a session with the router for each family.
func (l *Lab) bgp() *apiv1.BGP {
	router := routerOnMuxes()
	b := &apiv1.BGP{Asn: MuxASN}
	for _, address := range []netip.Prefix{router.V4, router.V6} {
		b.Peers = append(b.Peers, &apiv1.BGPPeer{
			Address:      address.Addr().String(),
			Asn:          RouterASN,
			PasswordFile: l.passwordPath(),
			Bfd:          &apiv1.BFD{},
		})
	}
	return b
}

// join makes a join token for a node and starts its agent.
func (l *Lab) join(ctx context.Context, client shuntv1connect.ManagerClient, n Node) error {
	if err := l.makeToken(ctx, client, n); err != nil {
		return err
	}
	return l.StartAgent(n.Name)
}

// makeToken makes a node's join token and stores it in the node's directory.
func (l *Lab) makeToken(ctx context.Context, client shuntv1connect.ManagerClient, n Node) error {
	answer, err := client.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{Node: n.Name, Role: string(n.Kind)}))
	if err != nil {
		return l.withLog("manager1", fmt.Errorf("create token for %s: %w", n.Name, err))
	}
	if err := os.MkdirAll(l.nodeDir(n.Name), 0o755); err != nil {
		return err
	}
	if err := writeFile(l.tokenPath(n.Name), []byte(answer.Msg.GetToken()+"\n"), 0o600); err != nil {
		return fmt.Errorf("write token of %s: %w", n.Name, err)
	}
	return nil
}

func (l *Lab) tokenPath(node string) string { return filepath.Join(l.nodeDir(node), "token") }

const agentProcess = "agent"

// StartAgent starts the agent of a mux or host. It does not wait.
func (l *Lab) StartAgent(name string) error { return l.startAgent(name, l.Binary) }

// startAgent starts the agent from a program, with flags in addition to the lab's own.
func (l *Lab) startAgent(name, program string, flags ...string) error {
	n, err := l.Topology.Find(name)
	if err != nil {
		return err
	}
	if n.Kind != KindMux && n.Kind != KindHost {
		return fmt.Errorf("node: %q: must be a mux or a host", name)
	}
	_, err = l.start(command{node: n, name: agentProcess, path: program, args: append(l.agentArgs(n), flags...)})
	return err
}

// RunDir returns the run directory of a node's agent.
func (l *Lab) RunDir(node string) string { return filepath.Join(l.nodeDir(node), "run") }

// Pins returns the pin directory of a node's agent.
func (l *Lab) Pins(node string) string { return filepath.Join(bpfRoot, l.Topology.Name, node) }

func (l *Lab) agentArgs(n Node) []string {
	return []string{
		string(n.Kind),
		"--name", n.Name,
		"--interface", Uplink,
		"--manager", l.managerAddresses(),
		"--token-file", l.tokenPath(n.Name),
		"--state", l.StateDir(n.Name),
		"--run", l.RunDir(n.Name),
		"--bpffs", l.Pins(n.Name),
		"--metrics", metricsAddress(n),
	}
}

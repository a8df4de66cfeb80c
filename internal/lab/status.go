package lab

import (
	"context"
	"fmt"
	"net/netip"
	"sort"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Status is the complete state of a lab.
type Status struct {
	Name     string   `json:"name"`
	Topology Topology `json:"topology"`
	// Complete means that `lab up` finished.
	Complete bool `json:"complete"`
	// Revision of the manager's store. 0 if the manager does not respond.
	Revision int64 `json:"revision"`
	// Error of the request to the manager. Empty if it responded.
	Error string       `json:"error,omitempty"`
	Nodes []NodeStatus `json:"nodes"`
	// Routes are the router's routes to VIPs.
	Routes []RouteStatus `json:"routes"`
}

// NodeStatus is one node of a lab.
type NodeStatus struct {
	Name      string          `json:"name"`
	Kind      Kind            `json:"kind"`
	Namespace string          `json:"namespace"`
	Exists    bool            `json:"exists"`
	Addresses []netip.Addr    `json:"addresses"`
	Processes []ProcessStatus `json:"processes"`
	Log       string          `json:"log"`
	// Agent is the node's state at the manager. Absent if there is no agent.
	Agent *AgentStatus `json:"agent,omitempty"`
	// Sessions are the BGP sessions as the node itself reports them.
	Sessions []SessionStatus `json:"sessions"`
}

// ProcessStatus is one process of a node: recorded, or found in its namespace, such as a mux's
// speaker.
type ProcessStatus struct {
	Name  string `json:"name"`
	Pid   int    `json:"pid"`
	Alive bool   `json:"alive"`
}

// AgentStatus is an agent's last report to the manager.
type AgentStatus struct {
	Connected bool   `json:"connected"`
	Synced    int64  `json:"synced_revision"`
	Error     string `json:"error,omitempty"`
}

// SessionStatus is one BGP session.
type SessionStatus struct {
	Peer  string `json:"peer"`
	State string `json:"state"`
	BFD   string `json:"bfd,omitempty"`
}

// RouteStatus is a VIP's route at the router with all its next hops.
type RouteStatus struct {
	Prefix netip.Prefix `json:"prefix"`
	Via    []netip.Addr `json:"via"`
}

// Status collects the state of all parts. It reports parts that do not respond within two seconds.
func (l *Lab) Status(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	saved, err := loadState(l.Topology.Name)
	if err != nil {
		return Status{}, err
	}
	processes, err := l.Processes()
	if err != nil {
		return Status{}, err
	}
	processes = append(processes, l.unrecorded(processes)...)
	s := Status{Name: l.Topology.Name, Topology: l.Topology, Complete: saved.Complete, Routes: []RouteStatus{}}
	answer := &apiv1.StatusResponse{}
	if !l.FabricOnly {
		if answer, err = l.ask(ctx); err != nil {
			s.Error = err.Error()
		}
	}
	s.Revision = answer.GetRevision()
	agents := map[string]*apiv1.NodeStatus{}
	for _, n := range answer.GetNodes() {
		agents[n.GetName()] = n
	}
	for _, n := range l.Topology.Nodes() {
		s.Nodes = append(s.Nodes, l.nodeStatus(ctx, n, processes, agents[n.Name]))
	}
	s.Routes = append(s.Routes, l.routes(answer)...)
	return s, nil
}

func (l *Lab) ask(ctx context.Context) (*apiv1.StatusResponse, error) {
	client, err := l.Client()
	if err != nil {
		return nil, err
	}
	answer, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return nil, err
	}
	return answer.Msg, nil
}

func (l *Lab) nodeStatus(ctx context.Context, n Node, processes []Process, agent *apiv1.NodeStatus) NodeStatus {
	s := NodeStatus{
		Name: n.Name, Kind: n.Kind, Namespace: n.Namespace(l.Topology.Name), Log: l.LogPath(n.Name),
		Addresses: []netip.Addr{}, Processes: []ProcessStatus{}, Sessions: []SessionStatus{},
	}
	s.Exists = netdev.Exists(s.Namespace)
	_ = n.Addresses().each(func(p netip.Prefix) error {
		s.Addresses = append(s.Addresses, p.Addr())
		return nil
	})
	for _, p := range processes {
		if p.Node == n.Name {
			s.Processes = append(s.Processes, ProcessStatus{Name: p.Name, Pid: p.Pid, Alive: p.Alive()})
		}
	}
	if agent != nil {
		s.Agent = &AgentStatus{Connected: agent.GetConnected(), Synced: agent.GetSyncedRevision(), Error: agent.GetError()}
		for _, p := range agent.GetPeers() {
			s.Sessions = append(s.Sessions, SessionStatus{Peer: p.GetAddress(), State: p.GetState(), BFD: p.GetBfd()})
		}
	}
	if n.Kind == KindRouter {
		states, _ := l.router().sessions(ctx)
		for peer, state := range states {
			s.Sessions = append(s.Sessions, SessionStatus{Peer: peer.String(), State: state})
		}
		sort.Slice(s.Sessions, func(i, j int) bool { return s.Sessions[i].Peer < s.Sessions[j].Peer })
	}
	return s
}

// routes reads the router's routes to every prefix that a mux advertises.
func (l *Lab) routes(answer *apiv1.StatusResponse) []RouteStatus {
	prefixes := map[netip.Prefix]bool{}
	for _, n := range answer.GetNodes() {
		for _, r := range n.GetRoutes() {
			if p, err := netip.ParsePrefix(r.GetPrefix()); err == nil {
				prefixes[p] = true
			}
		}
	}
	var routes []RouteStatus
	for p := range prefixes {
		via, _ := l.RoutesAtRouter(p)
		routes = append(routes, RouteStatus{Prefix: p, Via: via})
	}
	sort.Slice(routes, func(i, j int) bool { return routes[i].Prefix.String() < routes[j].Prefix.String() })
	return routes
}

// FlowsOverMuxes finds client ports, from the client's port on, whose TCP flows to a target the
// router sends through every mux, each of which gets the same number.
func (l *Lab) FlowsOverMuxes(client, target netip.AddrPort, each int) ([]uint16, error) {
	router, err := netdev.OpenNamespace(Node{Name: "router1"}.Namespace(l.Topology.Name))
	if err != nil {
		return nil, err
	}
	defer router.Close()
	const most = 1000 // ports that are tried
	var ports []uint16
	by := map[netip.Addr]int{}
	for i := range uint16(most) {
		port := client.Port() + i
		via, err := router.FlowHop(bridgeClients, netip.AddrPortFrom(client.Addr(), port), target)
		if err != nil {
			return nil, err
		}
		if by[via]++; by[via] > each {
			continue
		}
		if ports = append(ports, port); len(ports) == each*l.Topology.Muxes {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("flows to %s from %d ports of %s go by %d muxes: must be all %d", target, most, client.Addr(), len(by), l.Topology.Muxes)
}

// RoutesAtRouter returns the next hops that the router's kernel has for a prefix.
func (l *Lab) RoutesAtRouter(p netip.Prefix) ([]netip.Addr, error) {
	router, err := netdev.OpenNamespace(Node{Name: "router1"}.Namespace(l.Topology.Name))
	if err != nil {
		return []netip.Addr{}, err
	}
	defer router.Close()
	via, err := router.Routes(p)
	if via == nil {
		via = []netip.Addr{}
	}
	sort.Slice(via, func(i, j int) bool { return via[i].Less(via[j]) })
	return via, err
}

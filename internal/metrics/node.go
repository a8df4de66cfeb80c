package metrics

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/probe"
)

// Build is the version of the running program.
type Build struct{ Version, Commit string }

// Node holds the sources of the metrics of a mux or host.
type Node struct {
	Name  string
	Build Build
	// Status returns the node's report to its manager.
	Status func() *apiv1.NodeStatus
	// Progress is the state of the node's connection and plan.
	Progress *agent.Progress
	// Probes returns the statistics of the engine that checks backends; nil: there is none.
	Probes func() probe.Stats
	// Starts is the number of agent starts since the machine started.
	Starts uint64
}

// Mux holds the sources of a mux's metrics.
type Mux struct {
	Node
	Counters func() (dataplane.MuxCounters, error)
	// Flips counts changes of health by member.
	Flips func() map[dataplane.MemberKey]uint64
	// Captures returns the number of running captures.
	Captures func() int
	// LoadOf returns the load of a member at the mux; nil: there are none.
	LoadOf func(e lb.EndpointKey, member uint16) (load.Load, bool)
	// Schedulers returns the endpoints with a scheduler other than maglev; nil: there are none.
	Schedulers func() []Scheduler
	// Overruled counts endpoints in panic mode or fail-open, whose backends all count as alive
	// whatever the checks report.
	Overruled func() (panics, failOpen int)
}

// Scheduler is the state of an endpoint's scheduler.
type Scheduler struct {
	Endpoint lb.EndpointKey
	Name     string
	// Unknown is the number of members without a valid load.
	Unknown int
}

// NodeFamilies are common to muxes and hosts.
var NodeFamilies = []*Family{
	fam(Gauge, "shunt_build_info", one, "1, with the version of the program in its labels.", "role", "version", "commit"),
	fam(Counter, "shunt_agent_starts_total", one, "Starts of the agent since the machine's; the data path does not notice them."),
	fam(Gauge, "shunt_agent_error", one, "1 while the node reports an error to its manager; shunt describe node says which."),
	fam(Gauge, "shunt_agent_mtu_fault", one, "1 while an interface of the node is smaller than the MTU of its Network; shunt describe node says which."),
	fam(Gauge, "shunt_plan_revision", one, "Store revision of the plan that the data plane obeys; 0 without one."),
	fam(Gauge, "shunt_plan_wanted_revision", one, "Store revision of the newest plan received."),
	fam(Gauge, "shunt_plan_epoch", one, "Leadership term of the manager that the node obeys."),
	fam(Gauge, "shunt_plan_manager_connected", one, "1 while the node's stream to its manager is up."),
	fam(Gauge, "shunt_plan_age_seconds", one, "Time since the plan was last known to be the newest: 0 while the manager is connected and its newest plan is obeyed."),
	fam(Gauge, "shunt_plan_stale", one, "1 when shunt_plan_age_seconds is above 30: no manager, or a plan that cannot be applied. Forwarding goes on by the last good plan."),
	fam(Gauge, "shunt_metrics_omitted", "2", "Number of things that have no series because there are too many of them, by kind: backends, endpoints.", "kind"),
}

// MuxFamilies are for muxes only.
var MuxFamilies = []*Family{
	fam(Counter, "shunt_mux_packets_total", perReason, "Packets by reason and its class: drop, pass (left to the kernel), tx (forwarded or answered), consumed (kept by the program), info (counted in addition to another reason, or without a packet). docs/reference/reasons.md explains each reason.", "reason", "class"),
	fam(Counter, "shunt_mux_endpoint_packets_total", perEndpoint, "Packets that found the endpoint, forwarded or not.", endpointLabels...),
	fam(Counter, "shunt_mux_endpoint_bytes_total", perEndpoint, "Bytes of the IP packets that found the endpoint, forwarded or not.", endpointLabels...),
	fam(Gauge, "shunt_mux_endpoint_members", perEndpoint+", three states", "Members of the endpoint by state: alive, dead, draining.", append(endpointLabels[:4:4], "state")...),
	fam(Gauge, "shunt_mux_scheduler_stale_members", perEndpoint+" with a scheduler that looks at loads", "Members that take new flows whose load nobody told lately: what the others have on average counts for them, and with all of them stale their weights alone.", append(endpointLabels[:4:4], "scheduler")...),
	fam(Counter, "shunt_mux_backend_packets_total", perBackend, "Packets sent to the backend.", backendLabels...),
	fam(Counter, "shunt_mux_backend_bytes_total", perBackend, "Bytes of the IP packets sent to the backend, without outer headers.", backendLabels...),
	fam(Gauge, "shunt_mux_backend_alive", perBackend, "1 while this mux finds the backend healthy.", backendLabels...),
	fam(Gauge, "shunt_mux_backend_draining", perBackend, "1 while the backend gets no new flows.", backendLabels...),
	fam(Gauge, "shunt_mux_backend_weight", perBackend, "Weight in the ring at present; slow start raises it in steps.", backendLabels...),
	fam(Gauge, "shunt_mux_backend_flows", perBackend, "Flows of the backend in the flow table at the last sweep.", backendLabels...),
	fam(Gauge, "shunt_backend_connections", perBackend, "Established flows of clients that the backend's host counts, as far as the mux knows them.", backendLabels...),
	fam(Gauge, "shunt_backend_load", perBackend+", by source", "Load of the backend, as far as the mux knows it, by source: cpu is the busy share of its host's processors, from 0 to 1, application what the application says in its own unit.", append(backendLabels[:5:5], "source")...),
	fam(Counter, "shunt_mux_health_flips_total", perBackend, "Changes of the backend's health since the agent started.", backendLabels...),
	fam(Counter, "shunt_health_flips_total", perEndpoint, "Changes of the health of the endpoint's backends since the agent started: the sum of shunt_mux_health_flips_total, also of muxes with too many backends for that.", endpointLabels...),
	fam(Gauge, "shunt_health_suspect", one, "1 while the mux suspects itself, because so much fails at once, and keeps earlier verdicts."),
	fam(Gauge, "shunt_health_held", one, "Backends whose earlier verdict the mux keeps, because it suspects itself."),
	fam(Gauge, "shunt_health_hosts_unreached", one, "Hosts with health from host that answered the mux before and do not now: it checks their backends itself. At most 16 are counted."),
	fam(Gauge, "shunt_health_hosts_unconfirmed", one, "Hosts with health from host that never answered the mux. At most 16 are counted."),
	fam(Gauge, "shunt_health_damped", one, "Backends that stay down for a time because they flapped."),
	fam(Gauge, "shunt_health_overruled", "2", "Endpoints whose backends all count as alive whatever checks say, by cause: panic (too few are healthy), fail-open (none is).", "cause"),
	fam(Gauge, "shunt_mux_flows", "one per class, at most 4", "Flows in the flow table at the last sweep by class: untrusted, trusted, closing.", "class"),
	fam(Gauge, "shunt_mux_table_used", perTable, "Map pressure: entries in use of a table, in the table's own unit.", "table"),
	fam(Gauge, "shunt_mux_table_capacity", perTable, "Map pressure: entries a table has room for.", "table"),
	fam(Gauge, "shunt_mux_vip_advertised", perVIP, "1 while a router hears the VIP from this mux.", "vip"),
	fam(Gauge, "shunt_mux_bgp_session_up", perPeer, "1 while the BGP session is established.", "peer"),
	fam(Counter, "shunt_mux_bgp_session_losses_total", perPeer, "BGP sessions that ended after they were established, since the speaker started.", "peer"),
	fam(Gauge, "shunt_mux_speaker_kept", one, "1 while the BGP speaker is of another build than the agent and is not replaced yet, because a router would lose the routes."),
	fam(Gauge, "shunt_mux_bfd_session_up", perPeer+" with BFD", "1 while the BFD session is up.", "peer"),
	fam(Gauge, "shunt_mux_captures_running", one, "Captures that run at present: while there is one, packets cost more."),
}

// HostFamilies are for hosts only.
var HostFamilies = []*Family{
	fam(Counter, "shunt_host_packets_total", perReason, "Packets by reason and its class: drop, pass (left to the kernel), tx (delivered or sent), consumed (kept by a program or given to the agent), info (counted in addition to another reason, or without a packet). docs/reference/reasons.md explains each reason.", "reason", "class"),
	fam(Gauge, "shunt_host_bindings", one, "Backends of this machine that the programs know."),
	fam(Gauge, "shunt_host_servers_unanswered", one, "Servers of endpoints that got SYNs whose answers did not leave by the uplink for 20 seconds, less than half of them, or flows of UDP that got no answer, though others did before. At most 16 are counted."),
	fam(Gauge, "shunt_host_flows", "one per class, at most 3", "Flows in the flow table at the last sweep by class: untrusted, trusted, closing.", "class"),
	fam(Gauge, "shunt_host_table_used", perTable, "Map pressure: entries in use of a table, flows at the last sweep.", "table"),
	fam(Gauge, "shunt_host_table_capacity", perTable, "Map pressure: entries a table has room for.", "table"),
	fam(Counter, "shunt_host_backend_packets_total", perBackend, "Packets delivered to the backend.", backendLabels...),
	fam(Counter, "shunt_host_backend_bytes_total", perBackend, "Bytes of the IP packets delivered to the backend.", backendLabels...),
	fam(Counter, "shunt_host_server_packets_total", perServer, "IP packets between the server and clients of VIPs, by direction: in is to the server.", serverLabels...),
	fam(Counter, "shunt_host_server_bytes_total", perServer, "Bytes of the IP packets between the server and clients of VIPs, as the server sees them.", serverLabels...),
	fam(Counter, "shunt_host_server_flows_total", perServer, "Flows that began, by who began them: in is clients of VIPs, out is the server.", serverLabels...),
}

// nodeCollector collects the metrics common to muxes and hosts, then those of the role.
type nodeCollector struct {
	Node
	role     string
	families map[string]*Family
	own      func(sink, *apiv1.NodeStatus)
}

// NewMux registers a mux's metrics.
func NewMux(m Mux) (*Registry, error) {
	return register(nodeCollector{m.Node, "mux", described(slices.Concat(NodeFamilies, ProbeFamilies, MuxFamilies), m.Name), m.collect})
}

// NewHost registers a host's metrics.
func NewHost(n Node) (*Registry, error) {
	return register(nodeCollector{n, "host", described(slices.Concat(NodeFamilies, ProbeFamilies, HostFamilies), n.Name), collectHost})
}

// Describe implements prometheus.Collector.
func (c nodeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range c.families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c nodeCollector) Collect(out chan<- prometheus.Metric) {
	s, status, plan := sink{c.families, out}, c.Status(), c.Progress.State()
	s.put("shunt_build_info", 1, c.role, c.Build.Version, c.Build.Commit)
	s.put("shunt_agent_starts_total", float64(c.Starts))
	s.flag("shunt_agent_error", status.GetError() != "" || plan.Fault != "")
	s.flag("shunt_agent_mtu_fault", status.GetMtuFault() != "")
	s.put("shunt_plan_revision", float64(plan.Applied))
	s.put("shunt_plan_wanted_revision", float64(plan.Wanted))
	s.put("shunt_plan_epoch", float64(plan.Epoch))
	s.flag("shunt_plan_manager_connected", plan.Connected)
	s.put("shunt_plan_age_seconds", plan.Age.Seconds())
	s.flag("shunt_plan_stale", plan.Age > agent.StaleAfter)
	c.collectProbes(s)
	c.own(s, status)
}

// putFlows adds the flows of each class. A class without flows is not in the report, but its series
// must always exist.
func (s sink) putFlows(family string, status *apiv1.NodeStatus) {
	flows := map[string]uint64{"untrusted": 0, "trusted": 0, "closing": 0}
	for _, f := range status.GetFlows() {
		flows[f.GetClass()] = f.GetFlows()
	}
	for class, n := range flows {
		s.put(family, float64(n), class)
	}
}

func (m Mux) collect(s sink, status *apiv1.NodeStatus) {
	for _, r := range status.GetReasons() {
		s.put("shunt_mux_packets_total", float64(r.GetPackets()), r.GetReason(), r.GetClass())
	}
	flips := m.Flips()
	m.collectEndpoints(s, status, flips)
	m.collectBackends(s, status, flips)
	m.collectHealth(s, status)
	s.putFlows("shunt_mux_flows", status)
	for _, t := range status.GetTables() {
		s.put("shunt_mux_table_used", float64(t.GetUsed()), t.GetName())
		s.put("shunt_mux_table_capacity", float64(t.GetCapacity()), t.GetName())
	}
	if len(status.GetRoutes()) <= MaxEndpoints {
		for _, r := range status.GetRoutes() {
			vip, _, _ := strings.Cut(r.GetPrefix(), "/")
			s.flag("shunt_mux_vip_advertised", r.GetAdvertised(), vip)
		}
	}
	s.flag("shunt_mux_speaker_kept", slices.ContainsFunc(status.GetProcesses(), func(p *apiv1.ProcessBuild) bool { return p.GetKept() != "" }))
	for _, p := range status.GetPeers() {
		s.flag("shunt_mux_bgp_session_up", p.GetState() == "established", p.GetAddress())
		s.put("shunt_mux_bgp_session_losses_total", float64(p.GetLosses()), p.GetAddress())
		if p.GetBfd() != "" {
			s.flag("shunt_mux_bfd_session_up", p.GetBfd() == "up", p.GetAddress())
		}
	}
	s.put("shunt_mux_captures_running", float64(m.Captures()))
}

// members counts the members of an endpoint by state.
type members struct{ alive, dead, draining int }

// collectHealth collects the mechanisms that keep verdicts from following the checks.
func (m Mux) collectHealth(s sink, status *apiv1.NodeStatus) {
	held, damped := 0, 0
	for _, ms := range status.GetMembers() {
		if ms.GetHeld() {
			held++
		}
		if ms.GetDamped() {
			damped++
		}
	}
	s.flag("shunt_health_suspect", status.GetSuspect())
	s.put("shunt_health_held", float64(held))
	s.put("shunt_health_damped", float64(damped))
	s.put("shunt_health_hosts_unreached", float64(len(status.GetUnreachedHosts())))
	s.put("shunt_health_hosts_unconfirmed", float64(len(status.GetUnconfirmedHosts())))
	panics, failOpen := m.Overruled()
	s.put("shunt_health_overruled", float64(panics), "panic")
	s.put("shunt_health_overruled", float64(failOpen), "fail-open")
}

// collectSchedulers collects the endpoints whose service is known by VIP, protocol and port.
func (m Mux) collectSchedulers(s sink, services map[[3]string]string) {
	if m.Schedulers == nil {
		return
	}
	for _, of := range m.Schedulers() {
		vip, protocol, port := of.Endpoint.VIP.String(), of.Endpoint.Protocol.String(), lb.PortsText(of.Endpoint.Port, of.Endpoint.PortEnd)
		service, planned := services[[3]string{vip, protocol, port}]
		if e := (lb.Endpoint{Scheduler: of.Name}); planned && e.Loaded() {
			s.put("shunt_mux_scheduler_stale_members", float64(of.Unknown), service, vip, protocol, port, of.Name)
		}
	}
}

func (m Mux) collectEndpoints(s sink, status *apiv1.NodeStatus, flips map[dataplane.MemberKey]uint64) {
	byLabels := map[[4]string]*members{}
	for _, ms := range status.GetMembers() {
		labels := [4]string(memberLabels(ms))
		n := byLabels[labels]
		if n == nil {
			n = &members{}
			byLabels[labels] = n
		}
		switch {
		case ms.GetDraining():
			n.draining++
		case ms.GetAlive():
			n.alive++
		default:
			n.dead++
		}
	}
	if len(byLabels) > MaxEndpoints {
		s.put("shunt_metrics_omitted", float64(len(byLabels)), "endpoints")
		return
	}
	s.put("shunt_metrics_omitted", 0, "endpoints")
	services := map[[3]string]string{}
	for l, n := range byLabels {
		services[[3]string(l[1:])] = l[0]
		for state, count := range map[string]int{"alive": n.alive, "dead": n.dead, "draining": n.draining} {
			s.put("shunt_mux_endpoint_members", float64(count), l[0], l[1], l[2], l[3], state)
		}
	}
	m.collectSchedulers(s, services)
	turned := map[lb.EndpointKey]uint64{}
	for k, n := range flips {
		turned[k.Endpoint] += n
	}
	for k, n := range turned {
		vip, protocol, port := k.VIP.String(), k.Protocol.String(), lb.PortsText(k.Port, k.PortEnd)
		if service, planned := services[[3]string{vip, protocol, port}]; planned {
			s.put("shunt_health_flips_total", float64(n), service, vip, protocol, port)
		}
	}
	counters, err := m.Counters()
	if err != nil {
		return // the status reports it, too
	}
	for k, n := range counters.Endpoints {
		vip, protocol, port := k.VIP.String(), k.Protocol.String(), lb.PortsText(k.Port, k.PortEnd)
		service, planned := services[[3]string{vip, protocol, port}]
		if !planned {
			continue
		}
		s.put("shunt_mux_endpoint_packets_total", float64(n.Packets), service, vip, protocol, port)
		s.put("shunt_mux_endpoint_bytes_total", float64(n.Bytes), service, vip, protocol, port)
	}
}

func (m Mux) collectBackends(s sink, status *apiv1.NodeStatus, turned map[dataplane.MemberKey]uint64) {
	if n := len(status.GetMembers()); n > MaxBackends {
		s.put("shunt_metrics_omitted", float64(n), "backends")
		return
	}
	s.put("shunt_metrics_omitted", 0, "backends")
	flips := map[[4]string]uint64{}
	for k, n := range turned {
		flips[[4]string{k.Endpoint.VIP.String(), k.Endpoint.Protocol.String(), lb.PortsText(k.Endpoint.Port, k.Endpoint.PortEnd), strconv.Itoa(int(k.Member))}] += n
	}
	for _, ms := range status.GetMembers() {
		l := append(memberLabels(ms), backendText(ms))
		s.put("shunt_mux_backend_packets_total", float64(ms.GetPackets()), l...)
		s.put("shunt_mux_backend_bytes_total", float64(ms.GetBytes()), l...)
		s.flag("shunt_mux_backend_alive", ms.GetAlive(), l...)
		s.flag("shunt_mux_backend_draining", ms.GetDraining(), l...)
		s.put("shunt_mux_backend_weight", float64(ms.GetWeight()), l...)
		s.put("shunt_mux_backend_flows", float64(ms.GetFlows()), l...)
		s.put("shunt_mux_health_flips_total", float64(flips[[4]string{l[1], l[2], l[3], strconv.Itoa(int(ms.GetMember()))}]), l...)
		m.putLoad(s, ms, l)
	}
}

// putLoad adds the known load of a backend.
func (m Mux) putLoad(s sink, ms *apiv1.MemberStatus, l []string) {
	vip, err := netip.ParseAddr(ms.GetVip())
	protocol, wrong := lb.ParseProtocol(ms.GetProtocol())
	if m.LoadOf == nil || err != nil || wrong != "" {
		return
	}
	key := lb.EndpointKey{VIP: vip, Protocol: protocol, Port: uint16(ms.GetPort()), PortEnd: uint16(ms.GetPortEnd())}
	of, _ := m.LoadOf(key, uint16(ms.GetMember()))
	if of.Has&load.HasConnections != 0 {
		s.put("shunt_backend_connections", float64(of.Connections), l...)
	}
	if of.Has&load.HasCPU != 0 {
		s.put("shunt_backend_load", float64(of.CPU)/load.FullCPU, append(l[:5:5], "cpu")...)
	}
	if of.Has&load.HasGiven != 0 {
		s.put("shunt_backend_load", float64(of.Given), append(l[:5:5], "application")...)
	}
}

func collectHost(s sink, status *apiv1.NodeStatus) {
	for _, r := range status.GetReasons() {
		s.put("shunt_host_packets_total", float64(r.GetPackets()), r.GetReason(), r.GetClass())
	}
	s.put("shunt_metrics_omitted", 0, "endpoints")
	s.put("shunt_host_bindings", float64(len(status.GetMembers())))
	s.put("shunt_host_servers_unanswered", float64(len(status.GetUnansweredServers())))
	s.putFlows("shunt_host_flows", status)
	for _, t := range status.GetTables() {
		s.put("shunt_host_table_used", float64(t.GetUsed()), t.GetName())
		s.put("shunt_host_table_capacity", float64(t.GetCapacity()), t.GetName())
	}
	if n := len(status.GetMembers()); n > MaxBackends {
		s.put("shunt_metrics_omitted", float64(n), "backends")
		return
	}
	s.put("shunt_metrics_omitted", 0, "backends")
	// A member may have bindings with several outer addresses.
	sums := map[[5]string]dataplane.Counter{}
	for _, ms := range status.GetMembers() {
		l := [5]string(append(memberLabels(ms), backendText(ms)))
		n := sums[l]
		n.Packets += ms.GetPackets()
		n.Bytes += ms.GetBytes()
		sums[l] = n
	}
	for l, n := range sums {
		s.put("shunt_host_backend_packets_total", float64(n.Packets), l[:]...)
		s.put("shunt_host_backend_bytes_total", float64(n.Bytes), l[:]...)
	}
	for _, n := range status.GetServers() {
		s.put("shunt_host_server_packets_total", float64(n.GetPacketsIn()), n.GetDip(), "in")
		s.put("shunt_host_server_packets_total", float64(n.GetPacketsOut()), n.GetDip(), "out")
		s.put("shunt_host_server_bytes_total", float64(n.GetBytesIn()), n.GetDip(), "in")
		s.put("shunt_host_server_bytes_total", float64(n.GetBytesOut()), n.GetDip(), "out")
		s.put("shunt_host_server_flows_total", float64(n.GetFlowsIn()), n.GetDip(), "in")
		s.put("shunt_host_server_flows_total", float64(n.GetFlowsOut()), n.GetDip(), "out")
	}
}

// memberLabels returns the values of endpointLabels.
func memberLabels(m *apiv1.MemberStatus) []string {
	return []string{m.GetService(), m.GetVip(), m.GetProtocol(), lb.PortsText(uint16(m.GetPort()), uint16(m.GetPortEnd()))}
}

// backendText returns DIP:port, or the DIP if packets keep their port.
func backendText(m *apiv1.MemberStatus) string {
	switch {
	case m.GetDipPort() == 0:
		return m.GetDip()
	case strings.Contains(m.GetDip(), ":"):
		return "[" + m.GetDip() + "]:" + strconv.Itoa(int(m.GetDipPort()))
	}
	return m.GetDip() + ":" + strconv.Itoa(int(m.GetDipPort()))
}

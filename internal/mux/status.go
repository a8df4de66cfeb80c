package mux

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// sameStatus reports whether two speaker states have the same status report.
func sameStatus(a, b bgp.Status) bool {
	return a.Withheld == b.Withheld && a.Process == b.Process && sameRoutes(a.Routes, b.Routes) && slices.Equal(a.Peers, b.Peers)
}

// sameRoutes reports whether both are equal. It does not compare elements of the same array.
func sameRoutes(a, b []bgp.Route) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// Status implements agent.Handler.
func (a *Agent) Status() *apiv1.NodeStatus {
	counters, err := a.o.Tables.Counters()
	if err != nil {
		a.o.Log.Error("read counters", "error", err)
	}
	tables := tableStatus(a.o.Tables.Pressure())
	leaseFault := a.leaseFault()
	var withoutPorts map[lb.EndpointKey]agent.WithheldVIP
	if a.o.Leases != nil {
		withoutPorts = a.o.Leases.Withheld()
	}
	var links []agent.Link
	if a.o.Links != nil {
		links = a.o.Links()
	}
	members, suspect, probes := a.memberStatus(counters), !a.Suspect().IsZero(), a.o.Prober.Stats()
	answers := a.answerStatus(counters)
	a.mu.Lock()
	endpoints := a.plan.Endpoints // never changed in place
	a.mu.Unlock()
	refused := refusedStatus(endpoints, counters)
	a.mu.Lock()
	defer a.mu.Unlock()
	withheld := a.allWithheldLocked(withoutPorts)
	out := &apiv1.NodeStatus{
		Answers: answers, Refused: refused,
		Members: members, Routes: a.routeStatusLocked(), Tables: tables, Flows: a.flowStatusLocked(),
		Drained: a.drain.local || a.drain.last, Suspect: suspect, Starved: a.hunger.Felt(probes.Starved, a.o.Clock.Now()), Crowded: probes.Crowded > 0,
		MtuFault:       agent.MTUFault(a.plan.MTU, links),
		Withheld:       agent.WithheldStatus(withheld),
		UnreachedHosts: a.roster.machines.named((*health.Path).Lost), UnconfirmedHosts: a.roster.machines.named((*health.Path).Unconfirmed),
	}
	for name, n := range counters.Reasons {
		out.Reasons = append(out.Reasons, &apiv1.ReasonCount{Reason: name, Packets: n, Class: string(dataplane.MuxReasons().Class(name))})
	}
	slices.SortFunc(out.Reasons, func(x, y *apiv1.ReasonCount) int { return strings.Compare(x.Reason, y.Reason) })
	for _, p := range a.status.Peers {
		out.Peers = append(out.Peers, &apiv1.PeerStatus{Address: p.Address.String(), State: p.State, Bfd: p.BFD, Losses: p.Losses, Reason: p.Reason})
	}
	if s := a.status.Process; s.PID != 0 {
		out.Processes = append(out.Processes, &apiv1.ProcessBuild{Process: "speaker", Version: s.Version, Commit: s.Commit, Pid: uint32(s.PID), Kept: a.kept})
	}
	switch {
	case a.interfaceFault != "":
		out.Error = "interface: " + a.interfaceFault
	case a.speakerFault != nil:
		out.Error = fmt.Sprintf("bgp speaker: %v", a.speakerFault)
	case a.ready && a.status.Withheld != "":
		out.Error = "routes are withheld: " + a.status.Withheld
	case len(withheld) > 0:
		out.Error = strings.Join(agent.WithheldLines(withheld), "; ")
	case a.ready && leaseFault != "":
		out.Error = leaseFault
	}
	return out
}

// statusBatch is the number of endpoints whose members' status is built while mu is held, so that
// probe results do not wait for all endpoints.
const statusBatch = 256

// answerStatus returns the counts of replies to connections that servers opened, sorted by VIP.
func (a *Agent) answerStatus(counters dataplane.MuxCounters) []*apiv1.AnswerStatus {
	if a.o.Leases == nil {
		return nil
	}
	var out []*apiv1.AnswerStatus
	for key, n := range counters.Answers {
		out = append(out, &apiv1.AnswerStatus{
			Vip: key.VIP.String(), Service: a.o.Leases.Service(key.VIP), Packets: n.Packets, Bytes: n.Bytes,
		})
	}
	slices.SortFunc(out, func(x, y *apiv1.AnswerStatus) int { return strings.Compare(x.Vip, y.Vip) })
	return out
}

// refusedStatus returns the counts of packets for endpoints that went to no member, sorted by VIP.
func refusedStatus(endpoints []plan.Endpoint, counters dataplane.MuxCounters) []*apiv1.RefusedStatus {
	byVIP := map[netip.Addr]*apiv1.RefusedStatus{}
	for i := range endpoints {
		e := &endpoints[i]
		n, refused := counters.Refused[e.Key]
		if !refused {
			continue
		}
		sum := byVIP[e.Key.VIP]
		if sum == nil {
			sum = &apiv1.RefusedStatus{Vip: e.Key.VIP.String(), Service: e.Service}
			byVIP[e.Key.VIP] = sum
		}
		sum.Packets += n.Packets
		sum.Bytes += n.Bytes
	}
	return slices.SortedFunc(maps.Values(byVIP), func(x, y *apiv1.RefusedStatus) int { return strings.Compare(x.Vip, y.Vip) })
}

func (a *Agent) memberStatus(counters dataplane.MuxCounters) []*apiv1.MemberStatus {
	a.mu.Lock()
	endpoints := a.plan.Endpoints // never changed in place
	a.mu.Unlock()
	var out []*apiv1.MemberStatus
	for batch := range slices.Chunk(endpoints, statusBatch) {
		a.mu.Lock()
		out = a.memberStatusLocked(batch, counters, out)
		a.mu.Unlock()
	}
	return out
}

// memberStatusLocked appends the status of the members of some endpoints.
func (a *Agent) memberStatusLocked(endpoints []plan.Endpoint, counters dataplane.MuxCounters, out []*apiv1.MemberStatus) []*apiv1.MemberStatus {
	for _, e := range endpoints {
		vip, protocol, decision := e.Key.VIP.String(), e.Key.Protocol.String(), a.roster.decision(e.Key)
		for _, pm := range e.Members {
			m := a.roster.members[backend{e.Key, lb.BackendKey{DIP: pm.DIP, Port: pm.Port}}]
			if m == nil {
				continue
			}
			words, unknown := m.explain(), (m.words == "" || !m.asked) && !m.denied()
			switch {
			case m.alive():
			case decision.FailOpen:
				words += " (treated as alive: all are dead)"
			case decision.Panic:
				words += " (treated as alive: too few are healthy)"
			}
			n := counters.Members[dataplane.MemberKey{Endpoint: e.Key, Member: pm.ID}]
			out = append(out, &apiv1.MemberStatus{
				Vip: vip, Protocol: protocol, Port: uint32(e.Key.Port),
				Dip: pm.DIP.String(), DipPort: uint32(pm.Port), Member: uint32(pm.ID), Service: e.Service,
				Alive: m.alive(), LastCheck: words, Packets: n.Packets, Bytes: n.Bytes,
				PortEnd: uint32(e.Key.PortEnd), Flows: a.flowsOfLocked(e.Key, pm.ID), Weight: uint32(pm.Weight),
				Backup: pm.Backup, Draining: pm.Weight == 0, Unknown: unknown,
				Since: m.since(), Damped: m.damped, Held: m.held(),
			})
		}
	}
	return out
}

// routeStatusLocked lists every VIP of the plan, announced or not, and all other announced routes.
// Without an established session no route counts as announced.
func (a *Agent) routeStatusLocked() []*apiv1.RouteStatus {
	announced := map[netip.Prefix]bool{}
	for vip := range vips(a.told) {
		announced[netip.PrefixFrom(vip, vip.BitLen())] = false
	}
	heard := slices.ContainsFunc(a.status.Peers, func(p bgp.PeerStatus) bool { return p.State == "established" })
	for _, r := range a.status.Routes {
		announced[r.Prefix] = heard
	}
	var out []*apiv1.RouteStatus
	for prefix, yes := range announced {
		out = append(out, &apiv1.RouteStatus{Prefix: prefix.String(), Advertised: yes})
	}
	slices.SortFunc(out, func(x, y *apiv1.RouteStatus) int { return strings.Compare(x.Prefix, y.Prefix) })
	return out
}

// Trace implements agent.Handler.
func (a *Agent) Trace(q *apiv1.TraceRequest) *apiv1.TraceResult {
	packet, err := tracePacket(q)
	if err != nil {
		return &apiv1.TraceResult{Error: err.Error()}
	}
	walk, err := a.o.Tables.Trace(packet)
	if err != nil {
		return &apiv1.TraceResult{Error: fmt.Sprintf("trace: %v", err)}
	}
	out := &apiv1.TraceResult{Verdict: walk.Verdict, Steps: walk.Steps}
	if walk.SNAT {
		a.traceLease(packet, walk, out)
		return out
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.plan.Endpoints {
		if e.Key != walk.Endpoint {
			continue
		}
		out.Service = e.Service
		out.Steps = a.traceDecisionsLocked(e.Key, out.Steps)
		for _, m := range e.Members {
			if walk.Outer.IsValid() && m.ID == walk.Member {
				out.Dip, out.DipPort, out.Member = m.DIP.String(), uint32(m.Port), uint32(m.ID)
				out.OuterDestination = walk.Outer.String()
			}
		}
	}
	return out
}

// traceLease adds the server that holds the leased port of a traced packet.
func (a *Agent) traceLease(p dataplane.Packet, walk dataplane.Trace, out *apiv1.TraceResult) {
	out.OuterDestination = walk.Outer.String()
	if a.o.Leases == nil {
		return
	}
	if dip, service, ok := a.o.Leases.Holder(p.VIP, p.Port); ok {
		out.Dip, out.Service = dip.String(), service
		out.Steps = append(out.Steps, fmt.Sprintf("the port is %s's", dip))
	}
}

// traceDecisionsLocked inserts the agent's health decisions and the scheduler after the step that
// found the endpoint.
func (a *Agent) traceDecisionsLocked(key lb.EndpointKey, steps []string) []string {
	g := a.roster.groups[key]
	if g == nil || len(steps) == 0 {
		return steps
	}
	var decided []string
	if g.decision.FailOpen {
		decided = append(decided, "no member is healthy: it fails open, and all of them count as alive")
	}
	if g.decision.Panic && !g.decision.FailOpen {
		decided = append(decided, "too few of its members are healthy: it panics, and all of them count as alive")
	}
	if g.decision.Backup {
		decided = append(decided, "too few of its members are healthy: its backups take part")
	}
	if scheduleKind(&g.Endpoint) != dataplane.ScheduleRing {
		by := g.Scheduler
		if g.ScheduleBy != "" {
			by += ", by " + g.ScheduleBy
		}
		decided = append(decided, "new flows are given by "+by)
	}
	return slices.Insert(steps, 1, decided...)
}

// tracePacket parses the request; errors name the field.
func tracePacket(q *apiv1.TraceRequest) (dataplane.Packet, error) {
	p := dataplane.Packet{VNI: q.Vni, ClientPort: uint16(q.ClientPort), Port: uint16(q.Port)}
	var err error
	if p.Client, err = netip.ParseAddr(q.Client); err != nil {
		return p, fmt.Errorf("trace: client: %q: must be an IP address", q.Client)
	}
	if p.VIP, err = netip.ParseAddr(q.Vip); err != nil {
		return p, fmt.Errorf("trace: vip: %q: must be an IP address", q.Vip)
	}
	p.Client, p.VIP = p.Client.Unmap(), p.VIP.Unmap()
	if p.Client.Is4() != p.VIP.Is4() {
		return p, fmt.Errorf("trace: client: %v: must be of the VIP's family", p.Client)
	}
	switch q.Protocol {
	case "tcp", "":
		p.Protocol = lb.TCP
	case "udp":
		p.Protocol = lb.UDP
	default:
		return p, fmt.Errorf("trace: protocol: %q: must be tcp or udp", q.Protocol)
	}
	switch q.Segment {
	case "", "syn":
		p.Segment = dataplane.SegmentOpening
	case "ack":
		p.Segment = dataplane.SegmentLater
	case "fin", "rst":
		p.Segment = dataplane.SegmentClosing
	default:
		return p, fmt.Errorf("trace: segment: %q: must be syn, ack, fin or rst", q.Segment)
	}
	if p.Protocol == lb.UDP {
		p.Segment = dataplane.SegmentLater
	}
	if len(q.QuicCid) > 0 {
		if p.Protocol != lb.UDP {
			return p, fmt.Errorf("trace: quic_cid: %x: must be left out with protocol tcp", q.QuicCid)
		}
		p.CID = q.QuicCid
	}
	if q.ClientPort > 65535 || q.Port > 65535 {
		return p, fmt.Errorf("trace: port: %d: must be 0 to 65535", max(q.ClientPort, q.Port))
	}
	return p, nil
}

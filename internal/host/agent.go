// Package host is the agent of servers. It applies the plan to the decapsulating and translating
// programs of this machine, and reports the machine's settings that keep packets from the servers.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// Agent is the host's agent.Handler.
type Agent struct {
	tables  dataplane.HostTables
	machine Machine
	clock   clock.Clock
	log     *slog.Logger
	prober  Prober
	checks  *checks
	loads   *loads
	answers *answers
	// servers, if not nil, receives the bindings that the tables have. Set by Run before any other
	// use.
	servers *servers
	// guard limits the packets that servers may send. Set by Run as well.
	guard dataplane.HostGuard
	// served becomes true when a plan arrives; nil: not needed. Set by Run.
	served *atomic.Bool
	// outbound is nil if servers open no connections that leave with a VIP.
	outbound *outbound
	// leases, if not nil, are those of outbound. Set before any other use.
	leases *Leases
	// openings is nil without handshake offload. Set by Run before any other use.
	openings *openings

	// planning is held while a plan is applied; it guards wanted. Taken before all others.
	planning sync.Mutex
	wanted   *plan.Plan // the manager's last one; nil before the first

	// applying is held while the tables are updated; it guards the state of the tables. Taken
	// before mu, and before the locks of servers.
	applying sync.Mutex
	state    dataplane.HostState // of the last plan
	leavers  []leaver            // in the tables in addition to it
	repairs  repairs
	planned  *plan.Plan // the last one, without withheld VIPs; nil before the first
	spreads  spreads
	own      []netip.Addr // addresses of this host in the plan
	// flipped is notified when the health of members changed, because then new flows from switches
	// are spread differently.
	flipped chan struct{}

	// mu guards the fields below.
	mu          sync.Mutex
	hunger      probe.Hunger
	former      former
	bindings    []plan.Binding      // in the tables
	dips        map[netip.Addr]bool // of bindings
	problems    []Problem           // already logged
	uplinkFault string              // the reason why the uplink has no programs; empty: it has them
	mtu         uint32              // of the Network; 0 before the first plan
	withheld    withholding
	bound       *plan.Plan // the one in the tables; nil before the first
	// used is how many table entries the bindings of the plan usedOf take.
	used   map[string]uint64
	usedOf *plan.Plan
}

var _ agent.Handler = (*Agent)(nil)

// New returns an agent for the tables. The prober's results must be passed to Probed. The agent
// checks the machine's settings repeatedly, and logs changes.
func New(tables dataplane.HostTables, machine Machine, prober Prober, c clock.Clock, log *slog.Logger) *Agent {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Agent{
		tables: tables, machine: machine, prober: prober, checks: newChecks(), loads: newLoads(tables, c, log), answers: &answers{log: log}, clock: c, log: log,
		flipped: make(chan struct{}, 1),
	}
}

// Apply implements agent.Handler. Problems of the machine do not fail it: the tables are as wanted,
// and Status reports the problems. A lack of room does not fail it either: VIPs of the tenant that
// takes most of a full table are withheld. It returns an error for handshakes that the tables
// refuse, after it has applied the rest of the plan.
func (a *Agent) Apply(_ context.Context, p plan.Plan) error {
	a.planning.Lock()
	defer a.planning.Unlock()
	if a.served != nil {
		a.served.Store(true)
	}
	a.wanted = &p
	return a.apply(&p)
}

// apply applies the manager's plan, without the VIPs for which the tables have no room. planning is
// held.
func (a *Agent) apply(wanted *plan.Plan) error {
	a.mu.Lock()
	machines := a.former.follow(wanted.Repairs, wanted.Node.Addresses)
	a.mu.Unlock()
	p, err := a.follow(wanted)
	if err != nil {
		return err
	}
	a.mu.Lock()
	dips := dipsOf(p.Bindings)
	same := maps.Equal(a.dips, dips)
	a.bindings, a.dips, a.mtu = slices.Clone(p.Bindings), dips, p.MTU
	a.mu.Unlock()
	if !same {
		a.checkMachine()
	}
	a.loads.follow(p.Bindings)
	var refused error
	if a.openings != nil {
		refused = a.openings.follow(p)
	}
	defer a.poke()
	if err := errors.Join(refused, a.prober.Set(append(a.checks.follow(p.Bindings, a.clock.Now()), machines...))); err != nil {
		return err
	}
	a.log.Info("plan applied", "revision", p.Revision, "bindings", len(p.Bindings))
	return nil
}

// dipsOf returns the DIPs of bindings. Whether the machine's settings suit a binding depends on its
// DIP only.
func dipsOf(bindings []plan.Binding) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for i := range bindings {
		out[bindings[i].DIP] = true
	}
	return out
}

// follow writes to the tables as much of a plan and of the leaving bindings as they have room for.
// It returns the plan that the tables have.
func (a *Agent) follow(wanted *plan.Plan) (*plan.Plan, error) {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.own = wanted.Node.Addresses
	f := a.fittingTo(wanted)
	p := f.plan()
	err := a.followLocked(f, p)
	for err != nil && a.refused(f, err) {
		p = f.plan()
		err = a.followLocked(f, p)
	}
	if err != nil {
		return nil, err
	}
	a.withhold(f, p)
	return p, nil
}

// followLocked writes the state of a fitted plan and the leaving bindings to the tables. applying
// is held.
func (a *Agent) followLocked(f *fitting, p *plan.Plan) error {
	next := dataplane.HostState{
		TunnelSources: p.TunnelSources, MTU: p.MTU, Bindings: p.Bindings, Inside: p.Inside, Switches: p.Switches,
		Cookies: p.Cookies,
	}
	if a.guard != dataplane.GuardOff {
		next.Guard, next.VIPs, next.Underlay = a.guard, p.VIPs, underlay(p)
	}
	a.mu.Lock()
	lost := a.former.lost()
	a.mu.Unlock()
	next.Repairs = a.repairs.follow(p, lost)
	leavers := f.staying(leave(a.leavers, a.state.Bindings, next.Bindings, a.clock.Now()))
	a.spreadLocked(&next, leavers)
	err := a.tables.Apply(withLeavers(next, leavers))
	if full := (*dataplane.NoRoom)(nil); err != nil && len(leavers) > 0 && !errors.As(err, &full) {
		leavers = nil
		a.spreadLocked(&next, leavers)
		err = a.tables.Apply(next)
	}
	if err != nil {
		return err
	}
	a.state, a.leavers, a.planned = next, leavers, p
	a.tellServers()
	return nil
}

// tellServers passes the bindings in the tables to servers. applying is held.
func (a *Agent) tellServers() {
	if a.servers != nil {
		a.servers.bound(withLeavers(a.state, a.leavers).Bindings)
	}
}

// withLeavers returns the state with the leavers after its own bindings.
func withLeavers(s dataplane.HostState, leavers []leaver) dataplane.HostState {
	s.Bindings = slices.Clip(s.Bindings)
	for _, l := range leavers {
		s.Bindings = append(s.Bindings, l.Binding)
	}
	return s
}

// Expire removes the bindings whose grace period is over.
func (a *Agent) Expire() error {
	a.applying.Lock()
	defer a.applying.Unlock()
	rest := leave(a.leavers, nil, a.state.Bindings, a.clock.Now())
	if len(rest) == len(a.leavers) {
		return nil
	}
	next := a.state
	a.spreadLocked(&next, rest)
	if err := a.tables.Apply(withLeavers(next, rest)); err != nil {
		return err
	}
	a.state, a.leavers = next, rest
	a.tellServers()
	a.mu.Lock()
	a.withheld.hurry(a.clock.Now())
	a.mu.Unlock()
	return nil
}

// checkMachine checks the machine's settings for the present bindings. It logs new and solved
// problems.
func (a *Agent) checkMachine() []Problem {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.machine.Problems(a.bindings)
	for _, p := range now {
		if !slices.Contains(a.problems, p) {
			a.log.Warn(p.Text, "cure", p.Cure)
		}
	}
	for _, p := range a.problems {
		if !slices.Contains(now, p) {
			a.log.Info("cured: " + p.Text)
		}
	}
	a.problems = now
	return now
}

// Status implements agent.Handler. It returns a member per binding with its packet counters, all
// reasons, and in Error the faults that keep packets from the servers.
func (a *Agent) Status() *apiv1.NodeStatus {
	s := &apiv1.NodeStatus{Starved: a.starved(), Crowded: a.prober.Stats().Crowded > 0}
	var faults []string
	for _, p := range a.checkMachine() {
		if p.Fatal {
			faults = append(faults, fmt.Sprintf("%s (%s)", p.Text, p.Cure))
		}
	}
	a.mu.Lock()
	if a.uplinkFault != "" {
		faults = append(faults, a.uplinkFault)
	}
	mtu, withheld := a.mtu, a.withheld.vips
	a.mu.Unlock()
	faults = append(faults, agent.WithheldLines(withheld)...)
	s.Withheld = agent.WithheldStatus(withheld)
	if a.machine.Links != nil {
		s.MtuFault = agent.MTUFault(mtu, a.machine.Links())
	}
	counters, err := a.tables.Counters()
	if err != nil {
		faults = append(faults, err.Error())
	}
	if n := counters.Unrepaired; n > 0 {
		faults = append(faults, fmt.Sprintf("%d endpoints changed lately have no room in the tables: their connections are not repaired, nor do they get what switches send", n))
	}
	if a.servers != nil {
		if trouble := a.servers.trouble(); trouble != "" {
			faults = append(faults, trouble)
		}
	}
	faults = append(faults, a.openingStatus(s)...)
	if n := counters.Unmetered; n > 0 {
		faults = append(faults, fmt.Sprintf("%d servers are beyond the meters: what they get and send is counted by endpoint only", n))
	}
	s.Error = strings.Join(faults, "; ")
	for _, b := range counters.Bindings {
		s.Members = append(s.Members, memberStatus(b, a.checks.health(memberRef{b.Binding.Key, b.Binding.Member})))
	}
	for reason, n := range counters.Reasons {
		s.Reasons = append(s.Reasons, &apiv1.ReasonCount{Reason: reason, Packets: n, Class: string(dataplane.HostReasons().Class(reason))})
	}
	for _, m := range counters.Servers {
		s.Servers = append(s.Servers, serverStatus(m))
	}
	s.UnansweredServers = a.answers.lost()
	a.roomStatus(s)
	flowStatus(s, counters.Flows)
	a.outboundStatus(s, counters.Flows.SNAT)
	slices.SortFunc(s.Reasons, func(a, b *apiv1.ReasonCount) int { return strings.Compare(a.Reason, b.Reason) })
	return s
}

// starved reports whether the machine lacks resources for checks.
func (a *Agent) starved() bool {
	n := a.prober.Stats().Starved
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hunger.Felt(n, a.clock.Now())
}

// memberStatus returns the status of a binding, with the result of its checks for people. Muxes
// receive verdicts separately. For a member without checks Alive means that the binding exists.
func memberStatus(c dataplane.BindingCounter, h *apiv1.NodeHealth) *apiv1.MemberStatus {
	b, checked := c.Binding, h.GetVerdict() != ""
	return &apiv1.MemberStatus{
		Vip: b.Key.VIP.String(), Protocol: b.Key.Protocol.String(), Port: uint32(b.Key.Port), PortEnd: uint32(b.Key.PortEnd),
		Dip: b.DIP.String(), DipPort: uint32(b.DIPPort), Member: uint32(b.Member), Service: b.Service,
		Alive: !checked || h.GetVerdict() == convert.Healthy, Unknown: h.GetVerdict() == convert.Unknown, Checked: checked, Since: h.GetSince(),
		LastCheck: h.GetWords(), Packets: c.Packets, Bytes: c.Bytes,
	}
}

// serverStatus returns the traffic counters of a server.
func serverStatus(m dataplane.ServerMeter) *apiv1.ServerStatus {
	return &apiv1.ServerStatus{
		Dip: m.DIP.String(), PacketsIn: m.In.Packets, BytesIn: m.In.Bytes, FlowsIn: m.FlowsIn,
		PacketsOut: m.Out.Packets, BytesOut: m.Out.Bytes, FlowsOut: m.FlowsOut,
	}
}

// Trace implements agent.Handler: only muxes select backends.
func (a *Agent) Trace(*apiv1.TraceRequest) *apiv1.TraceResult {
	return &apiv1.TraceResult{Error: "hosts do not choose a backend: ask a mux"}
}

// Flows implements agent.Handler: only muxes have the flow table.
func (a *Agent) Flows(_ context.Context, _ *apiv1.FlowsRequest) *apiv1.FlowsResult {
	return &apiv1.FlowsResult{Error: "hosts have no flow table of the balancer: ask a mux"}
}

// Package mux is the mux's agent: it turns a plan into tables, health into alive bits, and both into routes.
//
// Order of publication: a VIP is withdrawn before the tables forget it, which they do after Options.Linger, and announced
// after they know it and all its members were asked; a flip of health reaches the tables before the routers. An agent that
// restarts disturbs nothing: tables and routes outlive it, and the last known health is taken over until probes say otherwise.
package mux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// Prober probes the wanted targets; *probe.Engine is the real one.
type Prober interface {
	// Set replaces the targets. Results come through the callback the prober was made with.
	Set([]probe.Target) error
}

// Hops follows the way to destinations; *netdev.NextHops is the real one.
type Hops interface {
	// Want replaces the destinations. Answers come through Agent.HopsChanged.
	Want([]netip.Addr)
}

// Options are what an Agent works with. All but Watch, Addresses and Log are required.
type Options struct {
	Tables  dataplane.MuxTables
	Ring    RingBuilder
	Prober  Prober
	Hops    Hops
	Speaker bgp.Speaker
	// Ensure makes sure that a speaker is there to take a state; started tells that it is new and knows nothing.
	Ensure func(context.Context) (started bool, err error)
	Clock  clock.Clock
	// RunDir keeps local decisions until the next boot.
	RunDir string
	// DrainWait is how long routers get to move the traffic away.
	DrainWait time.Duration
	// Linger is how long the tables keep a VIP that left the plan after its routes were withdrawn; 0: they forget it at once.
	Linger time.Duration
	// Watch puts the program that watches in place, for captures; nil: it cannot.
	Watch func(dataplane.WatchFilter) (Watcher, error)
	// Addresses of the interface, used as next hops for a family the Node object has no address of.
	Addresses []netip.Addr
	// ReadFile reads password files.
	ReadFile func(string) ([]byte, error)
	Log      *slog.Logger
}

// Agent is the mux's agent.Handler. Lock order: applying, tending, speaking, probing, mu.
type Agent struct {
	o Options
	// changed is poked when the status is worth a report, speak when routers may have to be told something, sweep when
	// the tables changed, lingers when a VIP may have left the plan.
	changed, speak, sweep, lingers chan struct{}
	// obeys is closed when the first plan was obeyed.
	obeys chan struct{}

	// applying is held while tables are made to follow a plan.
	applying sync.Mutex
	rings    rings
	sources  sourceLists
	marks    *marks

	// captures is the number of those that run.
	captures atomic.Int32
	// captureStall is the constant; tests have less patience.
	captureStall time.Duration

	// tending is held while the interface is looked after.
	tending sync.Mutex

	// probing is held while the prober is told its targets.
	probing sync.Mutex

	// speaking is held while the speaker is made to follow.
	speaking sync.Mutex

	mu sync.Mutex
	// told is the plan of the manager, plan the same with what lingers.
	told, plan plan.Plan
	linger     lingering
	roster     *roster
	drain      drain
	peers      []bgp.Peer
	hops       map[netip.Addr]netdev.NextHop
	// mtus are the path MTUs that the tables were given.
	mtus map[netip.Addr]uint32
	// inTables are the VIPs of the manager's plan that the data plane knows, as far as is known.
	inTables map[netip.Addr]bool
	// ready: a plan was applied, so that the speaker may be told.
	ready bool
	// left: the mux was taken out of service for good; nothing is said any more.
	left bool
	// comeback holds VIPs back until their members were asked again.
	comeback comeback
	// linkDown: the interface has no carrier; linkUp is when it came back.
	linkDown bool
	linkUp   time.Time
	// interfaceFault is what Tend could not mend.
	interfaceFault string
	// status is the speaker's, read at the last word to it.
	status bgp.Status
	// speakerFault is why the last word did not reach it.
	speakerFault error
	// sweeps is what is known of the flow table.
	sweeps sweeps
}

var _ agent.Handler = (*Agent)(nil)

// drainFile marks a local drain in the run directory.
const drainFile = "drain"

// New makes an agent; members that adopted tables know begin with the health they have there. Run must be running for it to announce anything.
func New(o Options) (*Agent, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	marks, err := openMarks(o.RunDir)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		o: o, roster: newRoster(o.Tables.Alive, marks.read), marks: marks,
		rings: rings{build: o.Ring, held: o.Tables.Rings, made: map[lb.EndpointKey]*madeRings{}}, sources: sourceLists{},
		hops:         map[netip.Addr]netdev.NextHop{},
		mtus:         map[netip.Addr]uint32{},
		inTables:     map[netip.Addr]bool{},
		captureStall: captureStall,
		changed:      make(chan struct{}, 1), speak: make(chan struct{}, 1), sweep: make(chan struct{}, 1), lingers: make(chan struct{}, 1), obeys: make(chan struct{}),
	}
	if _, err := os.Stat(filepath.Join(o.RunDir, drainFile)); err == nil {
		// The way out was taken before this agent started.
		a.drain = drain{local: true}
	}
	return a, nil
}

// Changed is poked when the status is worth a report.
func (a *Agent) Changed() <-chan struct{} { return a.changed }

// Ready is closed once a plan was obeyed.
func (a *Agent) Ready() <-chan struct{} { return a.obeys }

// Served tells whether a plan was obeyed.
func (a *Agent) Served() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ready
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Apply implements agent.Handler.
func (a *Agent) Apply(ctx context.Context, p plan.Plan) error {
	a.applying.Lock()
	defer a.applying.Unlock()
	return a.obey(ctx, p)
}

// obey makes everything follow the manager's plan, and keeps what lingers; applying is held.
func (a *Agent) obey(ctx context.Context, told plan.Plan) error {
	first := a.adoptRoutes(ctx)
	a.mu.Lock()
	peersBefore := a.peers
	a.mu.Unlock()
	peers, peersErr := peersOf(told.Node.BGP, peersBefore, a.o.ReadFile)

	a.mu.Lock()
	before, known, groups, lingered := a.plan, a.inTables, a.roster.groups, a.linger
	p := a.linger.extend(told, before, a.o.Clock.Now(), a.o.Linger)
	lingers := len(a.linger.until) > 0
	a.roster.apply(p.Endpoints, a.o.Clock.Now())
	a.inTables = intersect(known, vips(told))
	leaving := len(a.inTables) < len(known)
	a.mu.Unlock()
	if leaving {
		a.withdrawFirst(ctx, told, peers)
	}
	a.o.Hops.Want(append(outers(p), outers(before)...))

	err := a.applyTables(p)
	if err != nil && lingers {
		// There may be no room for what lingers beside what comes.
		p = told
		a.mu.Lock()
		a.linger.until = nil
		a.roster.apply(p.Endpoints, a.o.Clock.Now())
		a.mu.Unlock()
		err = a.applyTables(p)
	}
	if err != nil {
		a.mu.Lock()
		a.roster.takeBack(before.Endpoints, groups, a.o.Clock.Now())
		// Probes may have been judged by the plan that is not obeyed.
		a.setHealthLocked()
		a.unmarkAllLocked()
		a.inTables, a.linger = known, lingered
		a.mu.Unlock()
		poke(a.speak)
		return err
	}

	a.mu.Lock()
	if !a.ready {
		close(a.obeys)
	}
	a.told, a.plan, a.peers, a.ready = told, p, peers, true
	a.inTables = vips(told)
	a.roster.prune()
	a.drain.set(a.o.Clock.Now(), func(d *drain) { d.plan = p.Node.Drain })
	if first && p.Node.Drain {
		a.drain.since = time.Time{}
	}
	_, stateErr := a.announcementLocked().state()
	a.mu.Unlock()
	a.sources.prune(p)
	a.o.Hops.Want(outers(p))
	probesErr := a.setTargets()
	poke(a.speak)
	poke(a.changed)
	poke(a.sweep)
	poke(a.lingers)
	return errors.Join(peersErr, stateErr, probesErr)
}

// adoptRoutes takes over, once, what a speaker that outlived the agent before announces: those VIPs are in the tables.
func (a *Agent) adoptRoutes(ctx context.Context) (first bool) {
	a.mu.Lock()
	first = !a.ready
	a.mu.Unlock()
	if !first {
		return false
	}
	status, err := a.o.Speaker.Status(ctx)
	if err != nil {
		return true // none runs: nothing is announced
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.comeback.offered = map[netip.Addr]bool{}
	for _, r := range status.Routes {
		a.inTables[r.Prefix.Addr()] = true
		a.comeback.offered[r.Prefix.Addr()] = true
	}
	return true
}

// withdrawFirst takes back the routes of VIPs that the tables are about to forget. A speaker that does not answer must
// not stop the plan.
func (a *Agent) withdrawFirst(ctx context.Context, p plan.Plan, peers []bgp.Peer) {
	a.speaking.Lock()
	defer a.speaking.Unlock()
	a.mu.Lock()
	next := a.announcementLocked()
	if !a.ready {
		next.node, next.peers = p.Node, peers
		next.served = a.roster.served(p.Endpoints, a.reachableLocked)
	}
	a.mu.Unlock()
	want, _ := next.state()
	if err := a.o.Speaker.Set(ctx, want); err != nil {
		a.o.Log.Warn("withdraw before the tables change", "error", err)
	}
}

// applyTables makes the tables follow a plan under the present health and path MTUs.
func (a *Agent) applyTables(p plan.Plan) error {
	// Rings depend on the plan alone, and 20,000 take seconds: results of probes must not wait for them.
	a.rings.prepare(p.Endpoints)
	a.mu.Lock()
	mtus := make(map[netip.Addr]uint32, len(a.hops))
	for _, outer := range outers(p) {
		mtus[outer] = pathMTU(p.MTU, a.hops[outer])
	}
	want := wantedTables(p, present{
		rings: &a.rings, sources: a.sources, bit: a.roster.bit, decision: a.roster.decision,
		mtu: func(outer netip.Addr) uint32 { return mtus[outer] },
	})
	a.markAllLocked()
	a.mu.Unlock()
	err := a.o.Tables.Apply(want)
	a.rings.obeyed(p.Endpoints, err == nil)
	if err != nil {
		return fmt.Errorf("apply tables: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mtus = mtus
	// Tables that outlived an agent keep their bits, and health may have changed since `want` was made.
	a.setHealthLocked()
	a.unmarkAllLocked()
	return a.setHopsLocked(p)
}

// setHealthLocked gives the tables the health of all members, and what was decided of it.
func (a *Agent) setHealthLocked() {
	var bits []dataplane.MemberAlive
	backups := make(map[lb.EndpointKey]bool, len(a.roster.groups))
	for key, g := range a.roster.groups {
		bits = append(bits, a.roster.bits(g)...)
		backups[key] = g.decision.Backup
	}
	a.o.Tables.SetAlive(bits)
	a.o.Tables.SetBackup(backups)
}

// setHopsLocked gives the tables the ways to a plan's destinations. A map from before these destinations were asked
// for is held back: it would take away the ways that the tables of an agent before this one have.
func (a *Agent) setHopsLocked(p plan.Plan) error {
	for _, outer := range outers(p) {
		if _, answered := a.hops[outer]; !answered {
			return nil
		}
	}
	if err := a.o.Tables.SetNextHops(nextHops(a.hops)); err != nil {
		return fmt.Errorf("set next hops: %w", err)
	}
	return nil
}

// Probed takes a probe's result.
func (a *Agent) Probed(result probe.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if result.Void || !result.Good && !a.evidenceLocked(result.Target.Timeout) {
		a.roster.note(result)
		return
	}
	c := a.roster.observe(result)
	if c.asked {
		// A VIP may wait for just this one.
		poke(a.speak)
	}
	if c.empty() {
		return
	}
	a.obeyLocked(c)
	for _, f := range c.flips {
		a.o.Log.Info("health", "vip", f.Endpoint.VIP, "protocol", f.Endpoint.Protocol, "port", f.Endpoint.Port,
			"backend", result.Target.Address, "alive", f.Alive, "because", result.Words)
	}
	poke(a.speak)
	poke(a.changed)
}

// HopsChanged takes the full map of ways to the wanted destinations.
func (a *Agent) HopsChanged(hops map[netip.Addr]netdev.NextHop) {
	a.mu.Lock()
	a.hops = hops
	var err error
	if a.ready {
		err = a.setHopsLocked(a.plan)
	}
	stale := false
	for outer, mtu := range a.mtus {
		stale = stale || pathMTU(a.plan.MTU, hops[outer]) != mtu
	}
	a.mu.Unlock()
	poke(a.speak)
	if err != nil {
		a.o.Log.Error("follow next hops", "error", err)
	}
	if stale {
		a.reapply()
	}
}

// reapply makes the tables follow the present plan under new path MTUs.
func (a *Agent) reapply() {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.mu.Lock()
	p := a.plan
	a.mu.Unlock()
	if err := a.applyTables(p); err != nil {
		a.o.Log.Error("follow path MTUs", "error", err)
	}
}

// reachableLocked says whether the kernel has a way to a tunnel destination, as far as it was asked: without one the
// program drops what it should send there.
func (a *Agent) reachableLocked(outer netip.Addr) bool {
	hop, answered := a.hops[outer]
	return !answered || hop.Ifindex != 0
}

// announcementLocked is what routers should hear under the present plan.
func (a *Agent) announcementLocked() announcement {
	served := a.roster.served(a.plan.Endpoints, a.reachableLocked)
	return announcement{
		node: a.plan.Node, fallback: a.o.Addresses, peers: a.peers,
		served:   a.comeback.filter(a.o.Clock.Now(), served, a.roster.unsettled(a.plan.Endpoints)),
		inTables: a.inTables,
		phase:    a.drain.phase(a.o.Clock.Now(), a.o.DrainWait),
	}
}

func intersect(a, b map[netip.Addr]bool) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for k := range a {
		if b[k] {
			out[k] = true
		}
	}
	return out
}

// Package mux is the mux's agent: it turns a plan into tables, health into alive bits, and both into routes.
//
// Order of publication: a VIP is withdrawn before the tables forget it, which they do after Options.Linger, and announced
// after they know it and all its members were asked; a flip of health reaches the tables before the routers. An agent that
// restarts disturbs nothing: tables and routes outlive it, and the last known health is taken over until probes say otherwise.
package mux

import (
	"cmp"
	"context"
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
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/lock"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// Prober probes the wanted targets; *probe.Engine is the real one.
type Prober interface {
	// Set replaces the targets. Results come through the callback the prober was made with.
	Set([]probe.Target) error
	// Change adds targets to those and removes others.
	Change(start, stop []probe.Target) error
	// Resume adds targets of which it is known how they are, before the Set that has them: they need not be asked all at once.
	Resume(known []probe.Target) error
	// Stats is what was done so far.
	Stats() probe.Stats
}

// Hops follows the way to destinations; *netdev.NextHops is the real one.
type Hops interface {
	// Want replaces the destinations, which are in order and never changed in place. Answers come through Agent.HopsChanged.
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
	// Build is the version and commit of this program; a speaker of another one is replaced when that loses no route. Zero: never.
	Build bgp.Process
	// Replace ends the speaker and starts another one, which has no state yet. With keep routers that support graceful restart keep its routes.
	Replace func(ctx context.Context, keep bool) error
	Clock   clock.Clock
	// RunDir keeps local decisions until the next boot.
	RunDir string
	// Locks are those that keep a second agent out, which Control keeps.
	Locks []*lock.File
	// DrainWait is how long routers get to move the traffic away.
	DrainWait time.Duration
	// Linger is how long the tables keep a VIP that left the plan after its routes were withdrawn; 0: they forget it at once.
	Linger time.Duration
	// Grace is how long failing verdicts are held when the mux suspects itself; 0: health.DefaultGrace, below: not at all.
	Grace time.Duration
	// Watch puts the program that watches in place, for captures; nil: it cannot.
	Watch func(dataplane.WatchFilter) (Watcher, error)
	// Addresses of the interface, used as next hops for a family the Node object has no address of.
	Addresses []netip.Addr
	// Links tells the interfaces that packets come and go by; nil: none are known.
	Links func() []agent.Link
	// Leases are the ports that servers send from; nil: there are none. VIPs that these withhold are not announced.
	Leases *Leases
	// Sources is told the tunnel sources of the plan that is obeyed, when they are others; nil: nobody asks.
	Sources func([]netip.Prefix)
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
	// paths is poked when the MTUs of paths may be others.
	paths chan struct{}
	// suspicions is poked when the mux begins to suspect itself, or ends.
	suspicions chan struct{}
	// obeys is closed when the first plan was obeyed.
	obeys chan struct{}

	// applying is held while tables are made to follow a plan.
	applying sync.Mutex
	rings    rings
	sources  sourceLists
	marks    *marks
	// rules are what applies to the VIPs of the plan's services, outers where its members are tunnelled to.
	rules  vipRules
	outers outers
	// translating are the addresses of path nat that the tables were given.
	translating []dataplane.NATAddress
	// unsure: the tables may not be as the plan says, and are to be given all of the next one.
	unsure bool

	// captures is the number of those that run.
	captures atomic.Int32
	// captureStall is the constant; tests have less patience.
	captureStall time.Duration

	loads     loads
	schedules schedules

	// tending is held while the interface is looked after.
	tending sync.Mutex

	// probing is held while the prober is told its targets. probesFault is what it said to the last.
	probing     sync.Mutex
	probesFault error

	// speaking is held while the speaker is made to follow.
	speaking sync.Mutex
	said     said
	// turnedOver: this agent replaced the speaker.
	turnedOver bool

	mu sync.Mutex
	// told is the plan of the manager, plan the same with what lingers and without what is withheld. Only who holds applying, too, changes them.
	told, plan plan.Plan
	// withheld are the VIPs of told that the tables have no room for; retry is when to look for room again, zero when none is withheld, and
	// retryAfter how long that is after the last look.
	withheld   map[lb.EndpointKey]agent.WithheldVIP
	retry      time.Time
	retryAfter time.Duration
	linger     lingering
	roster     *roster
	// dueTold is when Run will do what is due.
	dueTold time.Time
	drain   drain
	hunger  probe.Hunger
	peers   []bgp.Peer
	// reread are the peers as their files had them at the last look, passwordFault is why a file could not be read then. Run alone uses both.
	reread        []bgp.Peer
	passwordFault string
	hops          map[netip.Addr]netdev.NextHop
	// hopsTold: the tables were given them.
	hopsTold bool
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
	// announced are the VIPs that may be announced and are in the tables, in order, unless routesMoved.
	announced   []netip.Addr
	routesMoved bool
	// outbound are the VIPs that servers hold ports of and whose leases the tables have, at leaseChanges of Leases.
	outbound     map[netip.Addr]bool
	leaseChanges uint64
	// linkDown: the interface has no carrier; linkUp is when it came back.
	linkDown bool
	linkUp   time.Time
	// interfaceFault is what Tend could not mend.
	interfaceFault string
	// status is the speaker's, read at the last word to it.
	status bgp.Status
	// kept is why a speaker of another build was not replaced; empty when nothing keeps it.
	kept string
	// speakerFault is why the last word did not reach it.
	speakerFault error
	// sweeps is what is known of the flow table.
	sweeps sweeps
}

var (
	_ agent.Handler   = (*Agent)(nil)
	_ agent.Suspicion = (*Agent)(nil)
)

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
		hops:     map[netip.Addr]netdev.NextHop{},
		mtus:     map[netip.Addr]uint32{},
		inTables: map[netip.Addr]bool{},
		rules:    vipRules{}, outers: newOuters(),
		comeback:     comeback{offered: map[netip.Addr]bool{}, held: map[netip.Addr]time.Time{}},
		captureStall: captureStall, loads: loads{table: load.NewTable()}, schedules: newSchedules(),
		changed: make(chan struct{}, 1), speak: make(chan struct{}, 1), sweep: make(chan struct{}, 1), lingers: make(chan struct{}, 1), paths: make(chan struct{}, 1), suspicions: make(chan struct{}, 1), obeys: make(chan struct{}),
	}
	a.roster.doubt.Grace = max(cmp.Or(o.Grace, health.DefaultGrace), 0)
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

// Apply implements agent.Handler.
func (a *Agent) Apply(ctx context.Context, p plan.Plan) error {
	a.applying.Lock()
	defer a.applying.Unlock()
	return a.obey(ctx, p)
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
	for _, r := range status.Routes {
		a.inTables[r.Prefix.Addr()], a.routesMoved = true, true
		a.comeback.offered[r.Prefix.Addr()] = true
	}
	return true
}

// Probed takes results of probes: one pass over the tables, however many there are.
func (a *Agent) Probed(results []probe.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followLocked(a.roster.observe(results, a.o.Clock.Now(), a.evidenceLocked), "of checks")
}

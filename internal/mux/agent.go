// Package mux implements the mux agent: it turns a plan into tables, health into alive bits, and
// both into routes.
//
// Order of publication: the agent withdraws a VIP before it removes the VIP from the tables, which
// happens after Options.Linger. It announces a VIP after the tables have it and all its members
// were probed. A health transition reaches the tables before the routers. A restart of the agent
// disturbs nothing: tables and routes outlive it, and the last known health stays in force until
// probes report otherwise.
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

// Prober probes the wanted targets; *probe.Engine implements it.
type Prober interface {
	// Set replaces the targets. Results are delivered to the callback that the prober was created
	// with.
	Set([]probe.Target) error
	// Change adds the targets in start and removes those in stop.
	Change(start, stop []probe.Target) error
	// Resume adds targets whose health is known, before the Set that contains them. Their first
	// probes may be spread over time.
	Resume(known []probe.Target) error
	// Stats returns the counters since the start.
	Stats() probe.Stats
}

// Hops resolves the next hops of destinations; *netdev.NextHops implements it.
type Hops interface {
	// Want replaces the destinations, which are sorted and never changed in place. Results are
	// delivered to Agent.HopsChanged.
	Want([]netip.Addr)
}

// Options configures an Agent. A field whose comment gives a meaning of nil or zero is optional, as
// are Addresses and Log.
type Options struct {
	Tables  dataplane.MuxTables
	Ring    RingBuilder
	Prober  Prober
	Hops    Hops
	Speaker bgp.Speaker
	// Ensure makes sure that a speaker is running. started reports that the speaker is new and has
	// no state.
	Ensure func(context.Context) (started bool, err error)
	// Build is the version and commit of this program. The agent replaces a speaker of another
	// build when no route is lost by that. Zero: it never replaces one.
	Build bgp.Process
	// Replace ends the speaker and starts another one without state. With keep, routers that
	// support graceful restart keep the routes of the old one.
	Replace func(ctx context.Context, keep bool) error
	Clock   clock.Clock
	// RunDir is the directory of local decisions that last until the next boot.
	RunDir string
	// Locks are the lock files that exclude a second agent. Control restores them when they are
	// removed.
	Locks []*lock.File
	// DrainWait is the time that routers have to move traffic away.
	DrainWait time.Duration
	// Linger is how long the tables keep a VIP that left the plan after its routes were withdrawn.
	// 0: the tables drop it immediately.
	Linger time.Duration
	// Grace is how long failing verdicts are held while the mux considers itself isolated. 0:
	// health.DefaultGrace; negative: they are not held.
	Grace time.Duration
	// Watch attaches the capture program; nil: captures are not supported.
	Watch func(dataplane.WatchFilter) (Watcher, error)
	// Addresses are the interface's addresses (optional). They are the next hops for a family of
	// which the Node object has no address.
	Addresses []netip.Addr
	// Links returns the interfaces that packets arrive and leave by; nil: none are known.
	Links func() []agent.Link
	// Leases holds the SNAT port leases of servers; nil: there are none. They determine whether
	// VIPs with SNAT are announced, and with which rank.
	Leases *Leases
	// Sources is called with the tunnel sources of each plan that is applied as a whole; nil: no
	// receiver.
	Sources func([]netip.Prefix)
	// ReadFile reads password files.
	ReadFile func(string) ([]byte, error)
	Log      *slog.Logger
}

// Agent is the mux's agent.Handler. Lock order: applying, tending, speaking, probing, mu.
type Agent struct {
	o Options
	// changed is notified when the status is worth a report, speak when the routes may have
	// changed, sweep when the tables changed, and lingers when a VIP may have left the plan.
	changed, speak, sweep, lingers chan struct{}
	// paths is notified when path MTUs may have changed.
	paths chan struct{}
	// suspicions is notified when the mux begins or stops to consider itself isolated.
	suspicions chan struct{}
	// obeys is closed after the first plan was applied.
	obeys chan struct{}

	// applying is held while a plan is applied to the tables.
	applying sync.Mutex
	rings    rings
	sources  sourceLists
	marks    *marks
	// rules holds limits and sources of the VIPs of the plan's services, outers the tunnel
	// destinations of their members.
	rules  vipRules
	outers outers
	// translating holds the addresses of path nat that the tables were last given.
	translating []dataplane.NATAddress
	// unsure: the tables may differ from the plan, so that the next plan is applied as a whole.
	unsure bool

	// captures is the number of running captures.
	captures atomic.Int32
	// captureStall is the constant of this name; tests use a shorter time.
	captureStall time.Duration

	loads     loads
	schedules schedules

	// tending is held while the link monitor runs.
	tending sync.Mutex

	// probing is held while targets are set. probesFault is the error of the last call to the
	// prober.
	probing     sync.Mutex
	probesFault error

	// speaking is held while the speaker is synchronized.
	speaking sync.Mutex
	said     said
	// turnedOver: this agent replaced the speaker.
	turnedOver bool

	mu sync.Mutex
	// told is the manager's plan. plan is the applied one: told plus retired VIPs, minus withheld
	// VIPs. A writer of either must hold applying, too.
	told, plan plan.Plan
	// withheld holds the VIPs of told for which the tables have no room. retry is the time of the
	// next attempt, zero when none is withheld. retryAfter is the delay between the last attempt
	// and the next.
	withheld   map[lb.EndpointKey]agent.WithheldVIP
	retry      time.Time
	retryAfter time.Duration
	linger     lingering
	roster     *roster
	// dueTold is the time for which Run last set its timer.
	dueTold time.Time
	drain   drain
	hunger  probe.Hunger
	peers   []bgp.Peer
	// reread are the peers with the passwords that their files had at the last look. passwordFault
	// is the reason why a file could not be read then. Only Run uses both.
	reread        []bgp.Peer
	passwordFault string
	hops          map[netip.Addr]netdev.NextHop
	// hopsTold: the tables have the next hops in hops.
	hopsTold bool
	// mtus holds the path MTUs that the tables were given.
	mtus map[netip.Addr]uint32
	// inTables holds the VIPs of the manager's plan that the data plane is known to have.
	inTables map[netip.Addr]bool
	// ready: a plan was applied, so that the speaker may be synchronized.
	ready bool
	// left: the mux was taken out of service for good; the speaker is not synchronized any more.
	left bool
	// comeback is the advertise hold-down: it delays VIPs until their members were probed again.
	comeback comeback
	// announced holds, sorted, the VIPs that may be announced and are in the tables. It is stale
	// while routesMoved is set.
	announced   []netip.Addr
	routesMoved bool
	// outbound holds the VIPs of which servers hold ports and whose leases the tables have, as of
	// change count leaseChanges of Leases.
	outbound     map[netip.Addr]bool
	leaseChanges uint64
	// linkDown: the interface has no carrier. linkUp is when the carrier came back.
	linkDown bool
	linkUp   time.Time
	// interfaceFault is the last error of Tend.
	interfaceFault string
	// status is the speaker's status, read after the last Set.
	status bgp.Status
	// kept is why a speaker of another build was not replaced; empty: there is no reason to keep
	// it.
	kept string
	// speakerFault is the error of the last synchronization with the speaker.
	speakerFault error
	// sweeps is the result of the last sweep of the flow table.
	sweeps sweeps
}

var (
	_ agent.Handler   = (*Agent)(nil)
	_ agent.Suspicion = (*Agent)(nil)
)

// drainFile marks a local drain in the run directory.
const drainFile = "drain"

// New returns an agent. Members in tables that it took over start with the health they have there.
// Nothing is announced unless Run is running.
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
		// The drain began before this agent started, so that since is zero and the mux is already
		// gone.
		a.drain = drain{local: true}
	}
	return a, nil
}

// Changed is notified when the status is worth a report.
func (a *Agent) Changed() <-chan struct{} { return a.changed }

// Ready is closed after the first plan was applied.
func (a *Agent) Ready() <-chan struct{} { return a.obeys }

// Served reports whether a plan was applied.
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

// adoptRoutes adds, before the first plan, the VIPs that a running speaker announces to inTables,
// because a previous agent announced them. It reports whether the next plan is the first.
func (a *Agent) adoptRoutes(ctx context.Context) (first bool) {
	a.mu.Lock()
	first = !a.ready
	a.mu.Unlock()
	if !first {
		return false
	}
	status, err := a.o.Speaker.Status(ctx)
	if err != nil {
		return true // no speaker runs: nothing is announced
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range status.Routes {
		a.inTables[r.Prefix.Addr()], a.routesMoved = true, true
		a.comeback.offered[r.Prefix.Addr()] = true
	}
	return true
}

// Probed applies results of probes in one pass over the tables, however many there are.
func (a *Agent) Probed(results []probe.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followLocked(a.roster.observe(results, a.o.Clock.Now(), a.evidenceLocked), "of checks")
}

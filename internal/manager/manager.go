// Package manager implements the manager, which serves users and nodes: it validates and stores
// objects, computes every node's plan and streams it.
//
// A Manager is a member: it follows the store in a view, and serves reads and node streams from it.
// At most one member leads, in a term. Code that only the leader may run gets the term from
// Manager.lead.
//
// Lock order: term.writing, view.mu, sessions.mu, session.mu, keeper.mu or placement.mu. The locks
// of Manager, snatKnown, reports, opinions, followers (before one follower's) and hostProgress are
// acquired last. verdicts.telling is acquired before those of sessions and followers, and
// snatPast.mu before that of its duty. No lock is acquired while those of outbox, intake, budget
// and the type writing, or verdicts.mu, are held.
package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/oidc"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/store"
)

// Options configures a manager. Dir, Store and Name are required.
type Options struct {
	Dir   *DataDir
	Store store.Store
	// Cluster is the store's membership; nil: the store of this manager accepts no members.
	Cluster store.Cluster
	// Name of this manager, unique among the members. Logs and the leader key contain it.
	Name string
	// Listen and Advertise are addresses (host:port) of the API. They determine the names in
	// certificates, and the address at which other members reach this one.
	Listen, Advertise string
	// Peer is the address (host:port) of this manager's part of the store; empty if it has none
	// that listens.
	Peer string
	// Version and Commit of the program.
	Version, Commit string
	Clock           clock.Clock
	Log             *slog.Logger
	// OIDC verifies bearer tokens of other issuers than this cluster; nil refuses them. The caller
	// must start its Run.
	OIDC *oidc.Verifier
	// Interceptors see every call of the API.
	Interceptors []connect.Interceptor
	// RingSize chooses ring sizes; nil: ring.SizeCode.
	RingSize plan.SizeCode
	// DownAfter is how long every mux must report a member dead before it is removed from rings. 0:
	// DefaultDownAfter; negative: never.
	DownAfter time.Duration
	// TraceTimeout bounds a node's response; 0: DefaultTraceTimeout.
	TraceTimeout time.Duration
	// AuditKeep is the retention time of the audit log; 0: DefaultAuditKeep.
	AuditKeep time.Duration
	// NodeTimeout is how long a node may leave sent data unread before its stream is ended. 0:
	// DefaultNodeTimeout; negative: never.
	NodeTimeout time.Duration
	// ReplaceAfter is how long a mux must be disconnected before others get its VIPs. 0:
	// DefaultReplaceAfter; negative: never.
	ReplaceAfter time.Duration
	// KeyLifetime and CIDKeyLifetime are the ages at which keys of cookies and of QUIC connection
	// ids are rotated. 0: DefaultKeyLifetime for cookies, never for connection ids. Negative:
	// never.
	KeyLifetime, CIDKeyLifetime time.Duration
	// KeyRest is how long the previous key is read after a rotation; 0: DefaultKeyRest.
	KeyRest time.Duration
	// SNATLeased, if not nil, is called with the durations of every lease of ranges. It must not
	// block.
	SNATLeased func(SNATLease)
	// Schema is the newest schema of the store that this manager supports; 0: Schema. A later one,
	// with the content of Schema, is for tests of upgrades.
	Schema int64
	// keepNothing lets a test do the work of the keeper and the placement, and write events and
	// audit entries.
	keepNothing bool
}

// DefaultDownAfter is short relative to the time for which the fallback chain's 1.5 % on the
// busiest backend matters, and longer than a restart of a server, because a ring change moves
// flows.
const DefaultDownAfter = 30 * time.Second

// DefaultTraceTimeout is how long Trace waits for a node.
const DefaultTraceTimeout = 2 * time.Second

// Manager is one member.
type Manager struct {
	o       Options
	secrets *secrets
	view    *view
	// FirstStart reports whether this start wrote the administrator's configuration.
	FirstStart bool

	// crowdedAt is the time of the last log message of crowdedOut, in nanoseconds since 1970.
	crowdedAt atomic.Int64

	reports  *reports
	opinions *opinions
	sessions *sessions
	// rewoundEpoch is the epoch within which the state went back to an older copy, or 0; see
	// rewound.
	rewoundEpoch atomic.Int64
	verdicts     *verdicts
	loads        *hostLoads
	intake       *intake
	// budget bounds the snapshots in transmission.
	budget *budget
	hosts  *hostProgress
	// outbox holds the reports for the leader while another member leads. followers are the members
	// that report to this one.
	outbox    *outbox
	askers    *askers
	followers *followers
	barriers  barriers
	cert      *managerCert
	// transport connects to other members.
	transport *http.Transport
	events    *eventLog
	auditLog  *auditLog
	// healthEvents records the effects of health on endpoints while this member leads.
	healthEvents *healthEvents
	// pageNumber makes the keys of journal pages in this term unique.
	pageNumber atomic.Uint64
	// backingUp holds an element while a backup runs.
	backingUp chan struct{}
	// placing holds the VIPs that the leader cannot place; nil while this member does not lead.
	placing atomic.Pointer[placing]
	// snat leases ports while this member leads; nil while it does not.
	snat atomic.Pointer[snatDuty]
	// snatPast holds the counters of terms that are over.
	snatPast snatPast
	// snatAcks holds the muxes' acknowledgements of leases, for the allocator of the next term.
	snatAcks snatAcks
	// snatKnown is the leader's last report of the progress of leases.
	snatKnown snatKnown

	// lease is that of this member's registration; 0 before the first.
	lease atomic.Int64
	// caMu serializes the steps of a replacement of the CA.
	caMu sync.Mutex

	mu sync.Mutex
	// term is the present one; nil while this member does not lead.
	term *term

	ctx     context.Context
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup
}

// Open loads the state and follows it until Close. It returns when the leader is known, or known to
// be impossible.
func Open(ctx context.Context, o Options) (*Manager, error) {
	o.fill()
	now := o.Clock.Now()
	var used bool
	if err := o.answered(ctx, func() (err error) {
		_, used, _, err = o.Store.Get(ctx, keySchema)
		return err
	}); err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	secrets, err := loadSecrets(o.Dir, o.Name, used, now)
	if err != nil {
		return nil, err
	}
	m := &Manager{o: o, secrets: secrets, view: newView(secrets), reports: newReports(), opinions: newOpinions(), sessions: newSessions(o.Clock), backingUp: make(chan struct{}, 1)}
	m.view.newest = o.Schema
	m.events, m.auditLog = newEventLog(o.Name), newAuditLog()
	m.hosts, m.outbox, m.followers = newHostProgress(), newOutbox(), newFollowers()
	m.askers = newAskers()
	m.healthEvents = newHealthEvents(m)
	m.verdicts, m.loads, m.budget = newVerdicts(), newHostLoads(), newBudget(o.Clock, snapshotBytes)
	m.intake = newIntake([classes]func(*session, *apiv1.NodeReport){m.takeAck, m.takeHealth, m.takeStatus})
	if secrets.old && !used {
		o.Log.Warn("the store is empty, but the CA is not new: nodes that obeyed a later epoch keep their plans until this one is as late")
	}
	m.ctx, m.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := m.begin(ctx, now); err != nil {
		if m.ctx.Err() != nil {
			// the cause of the member's end has priority over its consequences
			err = context.Cause(m.ctx)
		}
		m.Close()
		if errors.Is(err, errForeignCA) && !secrets.old {
			err = errors.Join(err, o.Dir.forgetSecrets())
		}
		return nil, err
	}
	return m, nil
}

// fill sets defaults.
func (o *Options) fill() {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.RingSize == nil {
		o.RingSize = ring.SizeCode
	}
	if o.DownAfter == 0 {
		o.DownAfter = DefaultDownAfter
	}
	if o.Schema == 0 {
		o.Schema = Schema
	}
	if o.AuditKeep == 0 {
		o.AuditKeep = DefaultAuditKeep
	}
	if o.NodeTimeout == 0 {
		o.NodeTimeout = DefaultNodeTimeout
	}
	if o.ReplaceAfter == 0 {
		o.ReplaceAfter = DefaultReplaceAfter
	}
	if o.KeyLifetime == 0 {
		o.KeyLifetime = DefaultKeyLifetime
	}
	if o.KeyRest == 0 {
		o.KeyRest = DefaultKeyRest
	}
	if o.TraceTimeout == 0 {
		o.TraceTimeout = DefaultTraceTimeout
	}
}

// answered calls f, a step of the start, repeatedly while it fails because the store does not
// answer, until ctx ends. The members of the store may be electing a leader.
func (o *Options) answered(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, store.ErrUnanswered) {
			return err
		}
		o.Log.Warn("the store does not answer, tries again to start", "error", err)
		select {
		case <-o.Clock.After(followRetry):
		case <-ctx.Done():
			return err
		}
	}
}

// begin starts the member's workers.
func (m *Manager) begin(ctx context.Context, now time.Time) error {
	starting, cancel := endWith(ctx, m.ctx)
	defer cancel()
	var watcher store.Watcher
	if err := m.o.answered(starting, func() (err error) {
		watcher, err = m.load(ctx)
		return err
	}); err != nil {
		return err
	}
	m.workers.Go(func() { m.follow(watcher) })
	m.workers.Go(m.endStuck)
	m.workers.Go(m.tendMuted)
	for range intakeWorkers {
		m.workers.Go(m.intake.run)
	}
	context.AfterFunc(m.ctx, m.intake.close)
	var err error
	if m.cert, err = newManagerCert(m.secrets, m.o); err != nil {
		return err
	}
	m.cert.tickets = &tickets{key: m.secrets.storeKey()}
	m.workers.Go(func() { m.cert.keep(m.ctx) })
	m.transport = m.newTransport()
	// This precedes the election, because a leader of its name is considered an earlier process of
	// this member.
	if err := m.o.answered(starting, func() error { return m.alone(ctx) }); err != nil {
		return err
	}
	var t *term
	if err := m.o.answered(starting, func() (err error) {
		t, err = m.firstCampaign(ctx)
		return err
	}); err != nil {
		return err
	}
	m.workers.Go(func() { m.leadAll(t) })
	var lease store.LeaseID
	if err := m.o.answered(starting, func() (err error) {
		lease, err = m.appear(ctx)
		return err
	}); err != nil {
		return err
	}
	m.workers.Go(func() { m.stayPresent(lease) })
	m.workers.Go(func() { m.tendHosts(m.ctx) })
	m.workers.Go(m.relayAll)
	m.workers.Go(m.shareNodes)
	m.workers.Go(m.followCA)
	if m.FirstStart, err = m.writeAdminConfig(now); err != nil {
		return err
	}
	m.workers.Go(func() { m.renewAdmin(m.ctx) })
	return nil
}

// stop ends all work with a cause. The first cause counts.
func (m *Manager) stop(cause error) { m.cancel(cause) }

// Close ends the member's work. If it leads, others may lead immediately. It does not close the
// store.
func (m *Manager) Close() {
	m.stop(net.ErrClosed)
	m.workers.Wait()
	if m.transport != nil {
		m.transport.CloseIdleConnections()
	}
}

// Epoch returns the last leadership term that this member has seen.
func (m *Manager) Epoch() int64 { return m.view.leadership().epoch }

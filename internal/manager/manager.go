// Package manager is the part that people and nodes talk to: it validates and stores objects, computes every node's
// plan and streams it.
//
// A Manager is a member: it follows the store in a view, and serves reads and node streams from it. At most one member
// leads, in a term; what only the leader does asks Manager.lead for it.
//
// Lock order: term.writing, view.mu, sessions.mu, session.mu, keeper.mu or placement.mu; those of Manager, snatKnown, reports,
// opinions, followers (before one follower's) and hostProgress are taken last. verdicts.telling comes before those of sessions
// and followers, and snatPast.mu before that of its duty. Those of outbox, intake, budget and writing, and verdicts.mu, are held with none taken after them.
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

// Options say how a manager runs. Dir, Store and Name are required.
type Options struct {
	Dir   *DataDir
	Store store.Store
	// Cluster is the store's membership; nil: the store of this manager takes no members.
	Cluster store.Cluster
	// Name of this manager, unique among the members: in logs and in the leader key.
	Name string
	// Listen and Advertise are addresses (host:port) of the API: to know which names certificates need, and where other
	// members reach this one.
	Listen, Advertise string
	// Peer is the address (host:port) of this manager's part of the store; empty when it has none that listens.
	Peer string
	// Version and Commit of the program.
	Version, Commit string
	Clock           clock.Clock
	Log             *slog.Logger
	// OIDC verifies bearer tokens that are not of this cluster; nil refuses them. Its Run is the caller's to start.
	OIDC *oidc.Verifier
	// Interceptors see every call of the API.
	Interceptors []connect.Interceptor
	// RingSize chooses ring sizes; nil is ring.SizeCode.
	RingSize plan.SizeCode
	// DownAfter is how long every mux must call a member dead until rings are made without it; 0 is DefaultDownAfter,
	// less than that never.
	DownAfter time.Duration
	// TraceTimeout bounds a node's answer; 0 is DefaultTraceTimeout.
	TraceTimeout time.Duration
	// AuditKeep is how long the audit log is kept; 0 is DefaultAuditKeep.
	AuditKeep time.Duration
	// NodeTimeout is how long a node may leave what it is sent unread until its stream is ended; 0 is DefaultNodeTimeout,
	// less than that never.
	NodeTimeout time.Duration
	// ReplaceAfter is how long a mux must be away until others get its VIPs; 0 is DefaultReplaceAfter, less than that
	// never.
	ReplaceAfter time.Duration
	// KeyLifetime and CIDKeyLifetime are after how long keys of cookies, and of QUIC connection ids, are rotated; 0 is
	// DefaultKeyLifetime, and for connection ids never, as less than that is for both.
	KeyLifetime, CIDKeyLifetime time.Duration
	// KeyRest is how long the key before is read after a rotation; 0 is DefaultKeyRest.
	KeyRest time.Duration
	// SNATLeased, if not nil, is called with how long every lease of ranges took. It must not block.
	SNATLeased func(SNATLease)
	// Schema is the newest schema of the store that this manager works with; 0 is Schema. A later one, whose content is that of
	// Schema, is for tests of upgrades.
	Schema int64
	// keepNothing leaves the steps of endpoints, places, and the writing of events and audit entries, to a test.
	keepNothing bool
}

// DefaultDownAfter is short beside how long the fallback chain's 1.5 % on the busiest backend matters, and long beside
// a restart of a server: a ring that changes moves flows.
const DefaultDownAfter = 30 * time.Second

// DefaultTraceTimeout is how long Trace waits for a node.
const DefaultTraceTimeout = 2 * time.Second

// Manager is one member.
type Manager struct {
	o       Options
	secrets *secrets
	view    *view
	// FirstStart tells whether this start made the administrator's configuration.
	FirstStart bool

	// crowdedAt is when crowdedOut logged last, nanoseconds since 1970.
	crowdedAt atomic.Int64

	reports  *reports
	opinions *opinions
	sessions *sessions
	// rewoundEpoch is the epoch within which the state went back, or 0: see rewound.
	rewoundEpoch atomic.Int64
	verdicts     *verdicts
	loads        *hostLoads
	intake       *intake
	// budget bounds the snapshots that are being sent.
	budget *budget
	hosts  *hostProgress
	// outbox is what the leader hears from here while another member leads; followers are those that this one hears.
	outbox    *outbox
	askers    *askers
	followers *followers
	barriers  barriers
	cert      *managerCert
	// transport reaches other members.
	transport *http.Transport
	events    *eventLog
	auditLog  *auditLog
	// healthEvents tells what health does to endpoints while this member leads.
	healthEvents *healthEvents
	// pageNumber makes keys of journals in this term differ.
	pageNumber atomic.Uint64
	// backingUp has an element while a backup is made.
	backingUp chan struct{}
	// placing is what the leader knows of VIPs that it cannot place; nil while this member does not lead.
	placing atomic.Pointer[placing]
	// snat leases ports while this member leads; nil while it does not.
	snat atomic.Pointer[snatDuty]
	// snatPast are the counts of terms that are over.
	snatPast snatPast
	// snatAcks are what muxes acknowledged of leases, for the desk of the next term.
	snatAcks snatAcks
	// snatKnown is what the leader said last of how far leases are.
	snatKnown snatKnown

	// lease is the one of this member's registration; 0 before the first.
	lease atomic.Int64
	// caMu makes steps of a replacement of the CA follow each other.
	caMu sync.Mutex

	mu sync.Mutex
	// term is the present one; nil while this member does not lead.
	term *term

	ctx     context.Context
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup
}

// Open loads the state and follows it until Close. It returns when it is known who leads, or that nobody can.
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
			err = context.Cause(m.ctx) // the end of the member goes before what it caused
		}
		m.Close()
		if errors.Is(err, errForeignCA) && !secrets.old {
			err = errors.Join(err, o.Dir.forgetSecrets())
		}
		return nil, err
	}
	return m, nil
}

// fill sets what was left out.
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

// answered calls f, a step of the start, again while it fails because the store does not answer, until ctx ends: the members of the store may be
// choosing a leader.
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

// begin makes the member work.
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
	// Before it campaigns: whoever leads under its name is taken for a former process of it.
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

// stop ends everything with a cause; the first one counts.
func (m *Manager) stop(cause error) { m.cancel(cause) }

// Close ends the member's work; when it leads, others may at once. It does not close the store.
func (m *Manager) Close() {
	m.stop(net.ErrClosed)
	m.workers.Wait()
	if m.transport != nil {
		m.transport.CloseIdleConnections()
	}
}

// Epoch is the leadership term that this member knows of.
func (m *Manager) Epoch() int64 { return m.view.leadership().epoch }

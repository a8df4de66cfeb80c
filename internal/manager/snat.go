package manager

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/snat"
	"github.com/shuntlb/shunt/internal/store"
)

const (
	// snatBatchRanges is the approximate number of ranges that one transaction reassigns. It bounds
	// how long a tenant that sends requests without end delays others to the duration of one
	// transaction.
	snatBatchRanges = 4096
	// snatTick is the minimum time that the controller sleeps.
	snatTick = 200 * time.Microsecond
	// snatPause is how long the controller waits when the store is full.
	snatPause = time.Second
)

// SNATLease holds the durations of the phases of a lease at the leader: until the request was
// scheduled, until it was stored, and until every mux had it.
type SNATLease struct{ Queued, Storing, Telling time.Duration }

// snatDuty is the controller that leases ranges: allocate, commit, wait for muxes, grant.
type snatDuty struct {
	m    *Manager
	wake chan struct{} // room for one

	mu   sync.Mutex
	desk *snat.Desk
	conf int64
	// known holds the VIPs that the allocator is configured with.
	known map[snat.VIP]bool
	// epoch of the term.
	epoch int64
	// due is the time of the next scheduled run. Zero: none.
	due  time.Time
	full snatFull
}

// leaseSNAT serves requests for ranges. It runs as a controller of the leader.
func (m *Manager) leaseSNAT(ctx context.Context) error {
	for ctx.Err() == nil {
		err := m.leaseSNATOnce(ctx)
		if !errors.Is(err, store.ErrNoSpace) {
			return err
		}
		m.o.Log.Error("cannot store leases of SNAT ports", "error", err)
		select {
		case <-m.o.Clock.After(snatPause):
		case <-ctx.Done():
		}
	}
	return nil
}

// leaseSNATOnce serves requests with one allocator until the term ends or a commit fails.
func (m *Manager) leaseSNATOnce(ctx context.Context) error {
	t, err := m.lead(ctx)
	if err != nil {
		return err
	}
	if err := m.catchUp(ctx); err != nil {
		return err
	}
	d := m.openSNAT(t)
	defer m.snatPast.close(d)
	m.o.Log.Debug("leases SNAT ports", "leased", d.leased())
	for {
		advanced := m.view.next()
		d.configure()
		wrote, err := d.commit(ctx, t)
		if err != nil {
			return err
		}
		if wrote {
			continue
		}
		select {
		case <-d.wake:
		case <-advanced:
		case <-d.timer():
		case <-ctx.Done():
			return nil
		}
	}
}

// openSNAT opens an allocator on the leases of the view, which has everything that was stored
// before the term.
func (m *Manager) openSNAT(t *term) *snatDuty {
	d := &snatDuty{m: m, wake: make(chan struct{}, 1), known: map[snat.VIP]bool{}, conf: -1, epoch: t.epoch}
	m.view.mu.RLock()
	book, rev := m.view.snat.book.Clone(), m.view.snat.rev
	m.view.mu.RUnlock()
	muxes := slices.Collect(maps.Keys(m.view.muxNames()))
	configs, _ := m.view.snatConfigs()
	d.desk = snat.Open(snat.DefaultRules, book, rev, muxes, configs, m.o.Clock.Now())
	d.configure()
	m.snat.Store(d)
	// Earlier acknowledgements are not repeated, and a mux whose stream stayed open must not count
	// as silent. Acknowledgements from now on go to the allocator.
	d.mu.Lock()
	defer d.mu.Unlock()
	for mux, ack := range m.snatAcks.all() {
		if m.sessions.get(mux) == ack.session {
			d.desk.Ack(mux, ack.revision)
		}
	}
	return d
}

// snatAcks holds the lease revisions that muxes acknowledged last, here or at a follower, also
// while no allocator is open.
type snatAcks struct {
	mu  sync.Mutex
	mux map[string]snatAck
}

// snatAck is the revision that a mux acknowledged on a stream.
type snatAck struct {
	session  *session
	revision int64
}

// hear records an acknowledgement.
func (a *snatAcks) hear(s *session, revision int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mux == nil {
		a.mux = map[string]snatAck{}
	}
	a.mux[s.name] = snatAck{s, revision}
}

// all returns the acknowledgements by mux.
func (a *snatAcks) all() map[string]snatAck {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.mux)
}

// keep removes muxes that are not in the set.
func (a *snatAcks) keep(muxes map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.mux, func(mux string, _ snatAck) bool { return !muxes[mux] })
}

// timer returns a channel that fires when muxes were silent for too long, or a batch is due. It
// returns nil if nothing is pending.
func (d *snatDuty) timer() <-chan time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.m.o.Clock.Now()
	d.desk.Tick(now)
	d.deliverLocked(now)
	if d.due = d.desk.Due(now); !d.due.IsZero() {
		return d.m.o.Clock.After(max(d.due.Sub(now), snatTick))
	}
	return nil
}

// configure updates the allocator with the configuration in the objects, if it changed.
func (d *snatDuty) configure() {
	d.m.view.mu.RLock()
	conf := d.m.view.snat.conf
	d.m.view.mu.RUnlock()
	d.mu.Lock()
	same := conf == d.conf
	d.mu.Unlock()
	if same {
		return
	}
	configs, conf := d.m.view.snatConfigs()
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.m.o.Clock.Now()
	for name, c := range configs {
		d.desk.Configure(name, c, now)
		d.known[name] = true
	}
	for _, u := range d.desk.Usage(now) {
		if configs[u.VIP] == nil {
			d.desk.Configure(u.VIP, nil, now)
			delete(d.known, u.VIP)
		}
	}
	d.desk.Shrink()
	d.conf = conf
	muxes := d.m.view.muxNames()
	d.desk.Keep(muxes)
	d.m.snatAcks.keep(muxes)
	d.deliverLocked(now)
}

// commit stores the pending batch in one transaction. It returns false if there is none.
func (d *snatDuty) commit(ctx context.Context, t *term) (bool, error) {
	d.mu.Lock()
	now := d.m.o.Clock.Now()
	if !d.desk.Ready(now) {
		d.mu.Unlock()
		return false, nil
	}
	b, tally := d.desk.Batch(now, snatBatchRanges)
	d.deliverLocked(now)
	d.mu.Unlock()
	if b == nil {
		return false, nil
	}
	txn := store.Txn{Ops: []store.Op{store.Put(snatLogKey(b.Number), b.Pack(nil))}}
	d.m.view.mu.RLock()
	pages, batches := d.m.view.snat.book.Save()
	for _, p := range pages {
		if p.Leased() == 0 && len(p.Rests()) == 0 && d.m.view.snat.vips[p.VIP] == nil {
			txn.Ops = append(txn.Ops, store.Delete(snatPageKey(p.VIP)))
		} else {
			txn.Ops = append(txn.Ops, store.Put(snatPageKey(p.VIP), p.Pack(nil)))
		}
	}
	d.m.view.mu.RUnlock()
	for _, n := range batches {
		txn.Ops = append(txn.Ops, store.Delete(snatLogKey(n)))
	}
	res, err := t.commit(ctx, txn)
	if err == nil && !res.Succeeded {
		err = errors.New("leases were not stored")
	}
	if err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now = d.m.o.Clock.Now()
	d.desk.Committed(tally, res.Revision, now)
	d.deliverLocked(now)
	return true, nil
}

// deliverLocked sends the answers to hosts' requests.
func (d *snatDuty) deliverLocked(now time.Time) {
	for _, mux := range d.desk.Lost() {
		d.m.o.Log.Warn("a mux did not acknowledge leases in time: grants no longer wait for it", "mux", mux)
	}
	answers := d.desk.Answers(now)
	if len(answers) == 0 {
		return
	}
	byNode := map[string]*apiv1.SnatAnswers{}
	at := map[snat.Holder][]string{}
	for _, a := range answers {
		switch {
		case a.Kind == snat.Refused:
			d.full.refused(d.m, a, now)
		case a.Kind == snat.Granted && d.m.o.SNATLeased != nil:
			d.m.o.SNATLeased(SNATLease{Queued: a.Served.Sub(a.Asked), Storing: a.Stored.Sub(a.Served), Telling: now.Sub(a.Stored)})
		}
		nodes, known := at[a.Holder]
		if !known {
			nodes = d.m.view.snatHosts(a.Holder)
			at[a.Holder] = nodes
		}
		for _, node := range nodes {
			if byNode[node] == nil {
				byNode[node] = &apiv1.SnatAnswers{Epoch: d.epoch}
			}
			byNode[node].Answers = append(byNode[node].Answers, convert.ToSNATAnswer(a))
		}
	}
	for node, up := range byNode {
		if s := d.m.sessions.get(node); s != nil {
			s.ask(&apiv1.PlanUpdate{SnatAnswers: up})
		}
	}
}

// hearSNAT processes the SNAT part of a node's report, received here or at a follower: requests and
// returns of hosts, for their own DIPs, and acknowledgements of muxes. Only the leader acts on it.
// Reports from a stream that is not the node's newest are ignored.
func (m *Manager) hearSNAT(s *session, r *apiv1.NodeReport) {
	if m.sessions.get(s.name) != s {
		return
	}
	if ack := r.GetSnatAck(); ack != nil && s.role == lb.RoleMux {
		m.snatAcks.hear(s, ack.GetRevision())
	}
	d := m.snat.Load()
	if d == nil {
		return
	}
	now := m.o.Clock.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if ack := r.GetSnatAck(); ack != nil && s.role == lb.RoleMux {
		d.desk.Ack(s.name, ack.GetRevision())
	}
	if s.role == lb.RoleHost {
		// Process returns first, so that requests are judged by the remaining leases.
		for _, ret := range r.GetSnatReturns() {
			if h, err := convert.FromSNATHolder(ret.GetHolder()); err == nil && m.view.snatAt(h, s.name) {
				d.desk.Give(h, convert.FromSNATRanges(ret.GetRanges()), now)
			}
		}
		for _, a := range r.GetSnatAsks() {
			h, err := convert.FromSNATHolder(a.GetHolder())
			switch {
			case err != nil || !m.view.snatAt(h, s.name):
			case a.GetSync():
				d.desk.Sync(h, convert.FromSNATRanges(a.GetHeld()), now)
			default:
				d.desk.Ask(h, int(min(a.GetWant(), snat.MaxRanges)), now)
			}
		}
	}
	d.deliverLocked(now)
	if due := d.desk.Due(now); !due.IsZero() && (d.due.IsZero() || due.Before(d.due)) {
		d.due = due
		notify.Send(d.wake)
	}
}

// saysSNAT reports whether a report contains SNAT fields, and whether it contains nothing else
// (alone), apart from the revision and the epoch, which every report has.
func saysSNAT(r *apiv1.NodeReport) (says, alone bool) {
	says = r.GetSnatAck() != nil || len(r.GetSnatAsks()) > 0 || len(r.GetSnatReturns()) > 0
	alone = says && r.GetStatus() == nil && r.GetHealth() == nil && r.GetTrace() == nil && r.GetFlows() == nil && r.GetHealthReply() == nil && r.GetSnatWords() == nil &&
		r.GetLoad() == nil && !r.GetAskHealth() && r.GetHello() == nil
	return says, alone
}

func (d *snatDuty) leased() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range d.desk.Usage(d.m.o.Clock.Now()) {
		n += u.Leased
	}
	return n
}

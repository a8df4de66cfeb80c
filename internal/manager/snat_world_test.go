package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	hostagent "github.com/shuntlb/shunt/internal/host"
	"github.com/shuntlb/shunt/internal/lb"
	muxagent "github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/snat"
	"github.com/shuntlb/shunt/internal/store"
)

// snatWorld is a model of three members with their views and the leader's allocator, two muxes and
// three hosts with the leasing parts of the real agents, and a store. All deciding code is the real
// one, every message and every process may be lost between any two steps, and time is simulated. It
// assumes that a host learns of the removal of its server before the quarantine is over.
type snatWorld struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	clock   *clock.Fake
	store   *fatefulStore
	members []*snatMember
	epoch   int64
	muxes   []*snatMux
	hosts   []*snatHost
	wanted  map[netip.Addr]bool
	// ranges is the maximum number of leasable ranges. It is low, so that they are reused often,
	// and lower while closed.
	ranges uint16
	closed bool
	// confRev is the revision of the last change of the service.
	confRev int64
	granted int
}

// fatefulStore fails the next transaction, before or after it is done.
type fatefulStore struct {
	*store.Memory
	fate int
}

var errFate = errors.New("the store does not answer")

func (s *fatefulStore) Txn(ctx context.Context, t store.Txn) (store.TxnResult, error) {
	fate := s.fate
	s.fate = 0
	if fate == 1 {
		return store.TxnResult{}, errFate
	}
	res, err := s.Memory.Txn(ctx, t)
	if fate == 2 {
		return store.TxnResult{}, errFate
	}
	return res, err
}

// snatMember is a member. One that is cut off receives nothing from the store or the leader, and
// its nodes do not notice.
type snatMember struct {
	m       *Manager
	watcher store.Watcher
	cut     bool
	duty    *snatDuty
	term    *term
	opened  int64 // revision of leases when the allocator was opened
}

// snatLink is a node's stream at a member, with the messages in transit.
type snatLink struct {
	name    string
	role    lb.Role
	at      *snatMember // nil: it has no stream
	session *session
	up      []*apiv1.NodeReport
	down    []*apiv1.PlanUpdate
	ack     *apiv1.SnatAck
}

type snatMux struct {
	link   snatLink
	leases *muxagent.Leases
	tables *dataplane.FakeMuxSNAT
	file   string
	// away: it reaches no member, for any length of time.
	away bool
}

type snatHost struct {
	link   snatLink
	addr   netip.Addr
	holder snat.Holder
	leases *hostagent.Leases
	tables *dataplane.FakeHostSNAT
	flows  []hostFlow
}

type hostFlow struct {
	flow snat.Flow
	port uint16
}

var worldVIP = snat.VIP{Addr: netip.MustParseAddr("203.0.113.10")}

func worldDIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, byte(1 + i), 11}) }

func newSNATWorld(t *testing.T, seed uint64) *snatWorld {
	w := &snatWorld{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 9)), clock: clock.NewFake(time.Unix(1_700_000_000, 0)),
		store: &fatefulStore{Memory: store.NewMemory()}, wanted: map[netip.Addr]bool{}, ranges: 12,
	}
	for i := range 3 {
		addr := netip.AddrFrom4([4]byte{10, 20, byte(1 + i), 1})
		h := &snatHost{link: snatLink{name: fmt.Sprintf("host%d", i), role: lb.RoleHost}, addr: addr, holder: snat.Holder{VIP: worldVIP, DIP: worldDIP(i)}}
		w.hosts = append(w.hosts, h)
		w.bootHost(h)
		w.wanted[h.holder.DIP] = true
		w.put(&lb.Node{Name: h.link.name, Role: lb.RoleHost, Addresses: []netip.Addr{addr}})
	}
	for i := range 2 {
		m := &snatMux{link: snatLink{name: fmt.Sprintf("mux%d", i), role: lb.RoleMux}, file: filepath.Join(t.TempDir(), "snat-vips")}
		w.muxes = append(w.muxes, m)
		w.bootMux(m)
		w.put(&lb.Node{Name: m.link.name, Role: lb.RoleMux, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 10, 0, byte(11 + i)})}})
	}
	w.configure()
	for i := range 3 {
		w.members = append(w.members, w.newMember(i))
	}
	w.elect(w.members[0])
	return w
}

func (w *snatWorld) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: "+format, append([]any{w.seed}, args...)...)
}

func (w *snatWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.fatalf("%v", err)
	}
}

func (w *snatWorld) put(o lb.Object) {
	w.t.Helper()
	lb.SetDefaults(o)
	raw, err := proto.Marshal(convert.ToObject(o))
	w.must(err)
	res, err := w.store.Memory.Txn(w.t.Context(), store.Txn{Ops: []store.Op{store.Put(ref{o.Kind(), o.ObjectName()}.key(), raw)}})
	w.must(err)
	w.confRev = res.Revision
}

// configure stores the service, whose endpoint listens on all ports above the leasable ones.
func (w *snatWorld) configure() {
	first := 1024 + w.ranges*snat.RangePorts
	if w.closed {
		first -= 4 * snat.RangePorts
	}
	ep := lb.Endpoint{Protocol: lb.TCP, Port: first, PortEnd: 65535, RepairWindow: new(time.Duration(0))}
	s := &lb.Service{Name: "web", Tenant: "shop", VIPs: []netip.Addr{worldVIP.Addr}}
	for _, h := range w.hosts {
		ep.Backends = append(ep.Backends, lb.Backend{DIPs: []netip.Addr{h.holder.DIP}, Host: h.addr, Weight: 1})
		if w.wanted[h.holder.DIP] {
			s.SNAT = append(s.SNAT, lb.SNATServer{DIP: h.holder.DIP})
		}
	}
	s.Endpoints = []lb.Endpoint{ep}
	w.put(s)
}

// newMember starts a member with everything that is stored.
func (w *snatWorld) newMember(i int) *snatMember {
	m := &Manager{
		o: Options{Name: fmt.Sprintf("m%d", i+1), Store: w.store, Clock: w.clock}, view: newView(nil), sessions: newSessions(w.clock), hosts: newHostProgress(),
		outbox: newOutbox(), followers: newFollowers(), reports: newReports(),
	}
	m.events = newEventLog(m.o.Name)
	m.o.fill()
	m.ctx, m.cancel = context.WithCancelCause(w.t.Context())
	snap, err := w.store.List(w.t.Context(), root)
	w.must(err)
	w.must(m.view.load(snap, 0))
	watcher, err := w.store.Watch(w.t.Context(), root, snap.Revision+1)
	w.must(err)
	return &snatMember{m: m, watcher: watcher}
}

// follow delivers some revisions to a member.
func (w *snatWorld) follow(x *snatMember, revisions int64) {
	if x.cut {
		return
	}
	newest, err := w.store.Barrier(w.t.Context())
	w.must(err)
	for upTo := min(newest, x.m.view.rev+revisions); x.m.view.rev < upTo; {
		b, err := x.watcher.Next(w.t.Context())
		w.must(err)
		w.must(x.m.view.fold(b))
	}
}

const all = 1 << 40

// leader returns the member with the newest valid term.
func (w *snatWorld) leader() (out *snatMember) {
	for _, x := range w.members {
		if x.term != nil && (out == nil || x.term.epoch > out.term.epoch) {
			out = x
		}
	}
	return out
}

// elect makes a member lead, unless the lease of another one is valid.
func (w *snatWorld) elect(x *snatMember) {
	if old := w.leader(); x.cut || old != nil && w.clock.Now().Sub(old.term.lastRenewed()) <= leaseTTL {
		return
	}
	w.resign(x)
	w.epoch++
	raw, err := proto.Marshal(&apiv1.StoredLeader{Epoch: w.epoch, Name: x.m.o.Name})
	w.must(err)
	res, err := w.store.Memory.Txn(w.t.Context(), store.Txn{Ops: []store.Op{store.Put(keyLeader, raw)}})
	w.must(err)
	w.follow(x, all)
	x.term = newTerm(x.m, w.epoch, res.Revision, 0, w.clock.Now())
	x.m.mu.Lock()
	x.m.term = x.term
	x.m.mu.Unlock()
	x.duty, x.opened = x.m.openSNAT(x.term), x.m.view.snat.rev
	for _, l := range w.links() {
		l.up = nil // the relays broke
		if l.ack != nil {
			l.up = []*apiv1.NodeReport{{SnatAck: l.ack}}
		}
		if l.at != nil {
			l.session.takeSNAT() // and with them the messages in transit
			x.m.sessions.add(l.session)
		}
	}
}

// resign ends a member's term.
func (w *snatWorld) resign(x *snatMember) {
	if x.term == nil {
		return
	}
	x.term.end(errFate)
	x.m.snatPast.close(x.duty)
	x.m.mu.Lock()
	x.m.term = nil
	x.m.mu.Unlock()
	x.term, x.duty = nil, nil
}

func (w *snatWorld) links() (out []*snatLink) {
	for _, m := range w.muxes {
		out = append(out, &m.link)
	}
	for _, h := range w.hosts {
		out = append(out, &h.link)
	}
	return out
}

// connect opens a stream at some member.
func (w *snatWorld) connect(l *snatLink, begin func()) {
	w.disconnect(l)
	l.at = w.members[w.rng.IntN(len(w.members))]
	l.session = newSession(w.t.Context(), identity{name: l.name, role: string(l.role)})
	l.session.snapshot = true
	if x := w.leader(); x != nil {
		x.m.sessions.add(l.session)
	}
	begin()
}

// disconnect drops all messages in transit.
func (w *snatWorld) disconnect(l *snatLink) {
	l.at, l.up, l.down, l.ack = nil, nil, nil, nil
}

// bootMux starts a mux's machine, restartMux only its agent.
func (w *snatWorld) bootMux(m *snatMux) {
	m.tables = &dataplane.FakeMuxSNAT{}
	w.restartMux(m)
}

func (w *snatWorld) restartMux(m *snatMux) {
	w.disconnect(&m.link)
	m.leases = muxagent.NewLeases(m.tables, w.clock)
	w.must(m.leases.Remember(m.file))
}

func (w *snatWorld) bootHost(h *snatHost) {
	h.tables, h.flows = dataplane.NewFakeHostSNAT(w.clock.Now), nil
	w.restartHost(h)
}

func (w *snatWorld) restartHost(h *snatHost) {
	w.disconnect(&h.link)
	h.leases = hostagent.NewLeases(h.tables, snat.DefaultStockRules, w.clock, slog.New(slog.DiscardHandler))
}

func (w *snatWorld) mux() *snatMux       { return w.muxes[w.rng.IntN(len(w.muxes))] }
func (w *snatWorld) host() *snatHost     { return w.hosts[w.rng.IntN(len(w.hosts))] }
func (w *snatWorld) member() *snatMember { return w.members[w.rng.IntN(len(w.members))] }

// tell makes a node's member send its pending messages.
func (w *snatWorld) tell(l *snatLink) {
	if l.at == nil {
		return
	}
	l.session.snat.renew = l.role == lb.RoleMux && w.rng.IntN(3) == 0
	l.down = append(l.down, l.at.m.snatUpdates(l.session)...)
	// Answers arrive through the leader.
	if x := w.leader(); x != nil && (x == l.at || !x.cut && !l.at.cut) {
		if up := l.session.takeSNAT(); up != nil {
			l.down = append(l.down, up)
		}
	}
}

func (w *snatWorld) hearMux(m *snatMux, most int) {
	for ; most > 0 && len(m.link.down) > 0; most-- {
		up := m.link.down[0]
		m.link.down = m.link.down[1:]
		w.must(m.leases.Hear(up))
	}
	var r apiv1.NodeReport
	if m.link.at != nil && m.leases.Say(&r) {
		m.link.ack = r.GetSnatAck()
		m.link.up = append(m.link.up, &r)
	}
}

func (w *snatWorld) hearHost(h *snatHost, most int) {
	for ; most > 0 && len(h.link.down) > 0; most-- {
		up := h.link.down[0]
		h.link.down = h.link.down[1:]
		for _, a := range up.GetSnatAnswers().GetAnswers() {
			w.granted += len(a.GetGrant().GetRanges())
		}
		w.must(h.leases.Hear(up))
	}
}

// use makes a host's server open and end connections, and the agent send the messages that are due.
func (w *snatWorld) use(h *snatHost) {
	for range w.rng.IntN(12) {
		f := snat.Flow{Protocol: 6, Port: 443, Addr: uint32(w.rng.IntN(3))}
		if port, ok := h.tables.Take(h.holder, f); ok {
			h.flows = append(h.flows, hostFlow{f, port})
		}
	}
	for range w.rng.IntN(12) {
		if len(h.flows) > 0 {
			i := w.rng.IntN(len(h.flows))
			h.tables.Give(h.holder, h.flows[i].flow, h.flows[i].port)
			h.flows = slices.Delete(h.flows, i, i+1)
		}
	}
	h.leases.Poll()
	var r apiv1.NodeReport
	if h.link.at != nil && h.leases.Say(&r) {
		h.link.up = append(h.link.up, &r)
	}
}

// deliver brings a node's reports to the leader.
func (w *snatWorld) deliver(l *snatLink) {
	x := w.leader()
	if len(l.up) == 0 || l.at == nil || x == nil || x != l.at && (x.cut || l.at.cut) {
		return
	}
	r := l.up[0]
	l.up = l.up[1:]
	if x.m.sessions.get(l.name) != l.session {
		x.m.sessions.add(l.session)
	}
	x.m.hearSNAT(l.session, proto.CloneOf(r))
}

// commit makes a member that leads, or believes so, store the pending batch. The store may fail it,
// before or after it is done.
func (w *snatWorld) commit(x *snatMember, fate int) {
	if x.duty == nil {
		return
	}
	if x.cut {
		fate = 1
	}
	x.duty.configure()
	w.store.fate = fate
	_, err := x.duty.commit(x.term.ctx, x.term)
	w.store.fate = 0
	if err != nil {
		w.resign(x)
		return
	}
	w.tick(x)
}

// tick lets the allocator process the time that passed.
func (w *snatWorld) tick(x *snatMember) {
	if x.duty != nil {
		x.duty.timer()
	}
}

// keep makes a leader renew its lease and confirm the newest leases, or end its term if it could
// not renew for too long.
func (w *snatWorld) keep(x *snatMember) {
	if x.term == nil {
		return
	}
	if !x.cut && x == w.leader() {
		x.term.mu.Lock()
		x.term.renewed = w.clock.Now()
		x.term.mu.Unlock()
	} else if w.clock.Now().Sub(x.term.lastRenewed()) > leaseTTL {
		w.resign(x)
		return
	}
	if down := x.m.tellSNATNewest(); down != nil {
		for _, f := range w.members {
			if f != x && !f.cut && !x.cut {
				f.m.snatKnown.hear(down.GetSnatNewest(), w.clock.Now())
			}
		}
	}
}

func (w *snatWorld) step() {
	switch n := w.rng.IntN(1000); {
	case n < 140:
		w.use(w.host())
	case n < 320:
		links := w.links()
		w.deliver(links[w.rng.IntN(len(links))])
	case n < 480:
		if x := w.leader(); x != nil {
			w.commit(x, 0)
		}
	case n < 620:
		m := w.mux()
		w.tell(&m.link)
		w.hearMux(m, w.rng.IntN(4))
	case n < 740:
		h := w.host()
		w.tell(&h.link)
		w.hearHost(h, w.rng.IntN(4))
	case n < 820:
		w.follow(w.member(), int64(w.rng.IntN(4)))
	case n < 860:
		w.keep(w.member())
	case n < 880:
		for _, x := range w.members {
			w.tick(x)
		}
	case n < 950:
		w.pass()
	case n < 956: // a leader that was cut off continues
		w.commit(w.member(), w.rng.IntN(3))
	case n < 966:
		w.reconnect()
	case n < 972:
		w.crash()
	case n < 974: // the leader resigns immediately
		if x := w.leader(); x != nil {
			w.resign(x)
		}
	case n < 979:
		w.member().cut = true
	case n < 984:
		w.member().cut = false
	case n < 986:
		w.elect(w.member()) // also while another one leads that does not renew its lease
	case n < 989:
		m := w.mux()
		if m.away = !m.away; m.away {
			w.disconnect(&m.link)
		}
	default:
		w.change()
	}
	if w.leader() == nil && w.rng.IntN(4) == 0 {
		w.elect(w.member())
	}
	for _, l := range w.links() { // no node is without a stream for long
		if l.at == nil && w.rng.IntN(8) == 0 {
			w.reconnect()
		}
	}
	w.check()
}

func (w *snatWorld) reconnect() {
	if w.rng.IntN(2) == 0 {
		if m := w.mux(); !m.away {
			w.connect(&m.link, m.leases.Begin)
		}
	} else {
		h := w.host()
		w.connect(&h.link, h.leases.Begin)
	}
}

// crash ends a process, or a machine.
func (w *snatWorld) crash() {
	switch w.rng.IntN(6) {
	case 0:
		w.bootMux(w.mux())
	case 1:
		w.restartMux(w.mux())
	case 2:
		w.bootHost(w.host())
	case 3:
		w.restartHost(w.host())
	case 4:
		i := w.rng.IntN(len(w.members))
		old := w.members[i]
		if old.cut {
			return // it cannot read the store
		}
		w.resign(old)
		w.members[i] = w.newMember(i)
		for _, l := range w.links() {
			if l.at == old {
				w.disconnect(l)
			}
		}
	}
}

// change adds or removes a server, or an endpoint's ports.
func (w *snatWorld) change() {
	if w.rng.IntN(3) == 0 {
		w.closed = !w.closed
	} else {
		dip := w.host().holder.DIP
		w.wanted[dip] = !w.wanted[dip]
		if len(w.snatDIPs()) == 0 {
			w.wanted[dip] = true
		}
	}
	w.configure()
}

func (w *snatWorld) snatDIPs() (out []netip.Addr) {
	for dip, ok := range w.wanted {
		if ok {
			out = append(out, dip)
		}
	}
	return out
}

// pass advances the time, by a little or by much. In the second case hosts receive, before and
// after, the state of a member that is not cut off.
func (w *snatWorld) pass() {
	if w.rng.IntN(8) > 0 {
		w.clock.Advance(time.Duration(w.rng.IntN(50)) * time.Millisecond)
		return
	}
	w.hostsHear()
	for _, m := range w.muxes { // pings end a stream that delivers nothing for so long
		if len(m.link.down) > 0 {
			w.disconnect(&m.link)
		}
	}
	w.clock.Advance(time.Duration(w.rng.IntN(int(snat.Quarantine / 2))))
	for _, x := range w.members { // it renewed its lease meanwhile, or lost it
		if w.rng.IntN(16) > 0 {
			w.keep(x)
		}
	}
	w.check()
	w.hostsHear()
}

// hostsHear keeps the world's assumption.
func (w *snatWorld) hostsHear() {
	for _, x := range w.members {
		w.follow(x, all)
	}
	for _, h := range w.hosts {
		if h.link.at == nil || h.link.at.cut {
			was := slices.Clone(w.members)
			w.members = slices.DeleteFunc(w.members, func(x *snatMember) bool { return x.cut })
			if len(w.members) == 0 { // no member can deliver: the servers must not change meanwhile
				was[0].cut = false
				w.follow(was[0], all)
				w.members = was[:1]
			}
			w.connect(&h.link, h.leases.Begin)
			w.members = was
		}
		w.tell(&h.link)
		w.hearHost(h, all)
		h.link.session.takeSNAT() // messages of a leader that is cut off are lost with its relay
	}
}

// check verifies that no range is at two servers, that no mux that may advertise the VIP sends a
// range to another server, and that muxes for which grants wait send it to its holder.
func (w *snatWorld) check() {
	snap, err := w.store.List(w.t.Context(), dirSNAT)
	w.must(err)
	truth := newView(nil)
	w.must(truth.load(snap, 0))
	stored := truth.snat.book.Page(worldVIP)
	at := map[snat.Range]*snatHost{}
	for _, h := range w.hosts {
		for _, r := range h.tables.Ranges(h.holder) {
			if other := at[r]; other != nil {
				w.fatalf("range %s is at %s and at %s", r, h.holder.DIP, other.holder.DIP)
			}
			at[r] = h
		}
	}
	leader := w.leader()
	for r, h := range at {
		has, leased := netip.Addr{}, false
		if stored != nil {
			has, leased = stored.DIP(r)
		}
		if leased && has != h.holder.DIP {
			w.fatalf("%s uses range %s, which is stored as that of %s", h.holder.DIP, r, has)
		}
		for _, m := range w.muxes {
			got, ok := m.tables.DIP(worldVIP, r.Port())
			if ok && got != h.holder.DIP && m.leases.Newest(worldVIP.Addr, muxagent.DefaultWordsFor) {
				w.fatalf("%s uses range %s, and %s, whose words are not old, sends it to %s", h.holder.DIP, r, m.link.name, got)
			}
			heard := m.link.ack.GetRevision() == m.leases.Revision() && len(m.link.up) == 0
			waitedFor := heard && leader != nil && leader.duty.desk.Eligible(m.link.name) && m.leases.Revision() >= max(leader.opened, w.confRev)
			if waitedFor && leased && w.wanted[has] && (!ok || got != has) {
				w.fatalf("%s uses range %s, which %s, for which grants wait, sends to %v", h.holder.DIP, r, m.link.name, got)
			}
		}
	}
}

// settle makes everything work again: every server gets ports, and every mux and host reports the
// stored leases.
func (w *snatWorld) settle() {
	for _, dip := range []netip.Addr{worldDIP(0), worldDIP(1), worldDIP(2)} {
		w.wanted[dip] = true
	}
	w.closed, w.ranges = false, 200
	w.configure()
	w.clock.Advance(2 * leaseTTL)
	for _, x := range w.members {
		x.cut = false
		w.resign(x)
		w.follow(x, all)
	}
	w.elect(w.members[0])
	for _, m := range w.muxes {
		m.away = false
		w.connect(&m.link, m.leases.Begin)
	}
	for _, h := range w.hosts {
		w.connect(&h.link, h.leases.Begin)
	}
	for range 300 {
		w.keep(w.members[0])
		for _, h := range w.hosts {
			h.leases.Poll()
			var r apiv1.NodeReport
			if h.leases.Say(&r) {
				h.link.up = append(h.link.up, &r)
			}
		}
		for range 4 {
			for _, l := range w.links() {
				for len(l.up) > 0 {
					w.deliver(l)
				}
			}
			w.commit(w.members[0], 0)
			for _, x := range w.members {
				w.follow(x, all)
			}
			for _, m := range w.muxes {
				w.tell(&m.link)
				w.hearMux(m, all)
			}
			w.tick(w.members[0])
			for _, h := range w.hosts {
				w.tell(&h.link)
				w.hearHost(h, all)
			}
		}
		w.clock.Advance(time.Second)
		w.check()
	}
	for _, h := range w.hosts {
		if len(h.tables.Ranges(h.holder)) == 0 {
			w.fatalf("%s has no ports though everything works", h.holder.DIP)
		}
	}
	for _, m := range w.muxes {
		w.audit(&m.link, m.leases.Words)
	}
	for _, h := range w.hosts {
		w.audit(&h.link, h.leases.Words)
	}
}

// audit compares a node's leases with the store, as AuditSNAT does.
func (w *snatWorld) audit(l *snatLink, words func(*apiv1.SnatWordsQuestion) *apiv1.SnatWords) {
	said := words(&apiv1.SnatWordsQuestion{Vips: []*apiv1.SnatVIP{{Vip: worldVIP.Addr.String()}}})
	if said.GetError() != "" || len(said.GetPages()) != 1 {
		w.fatalf("%s says %v", l.name, said)
	}
	page, err := saidPage(worldVIP, said.GetPages()[0])
	w.must(err)
	a := &snatAudit{m: w.members[0].m, node: l.name, role: l.role, out: &apiv1.SnatNodeAudit{}}
	w.must(a.compare(page, said.GetRevision(), w.members[0].m.view.snatPages([]snat.VIP{worldVIP})[0]))
	if a.out.Different != 0 || a.out.Ranges == 0 {
		w.fatalf("%s: of %d ranges %d differ: %v", l.name, a.out.Ranges, a.out.Different, a.out.Differences)
	}
}

// TestNoPortIsHeldTwiceAnywhere: the invariants hold whichever messages are lost, and whichever
// processes stop.
func TestNoPortIsHeldTwiceAnywhere(t *testing.T) {
	seeds, steps := 60, 3000
	if testing.Short() {
		seeds = 15
	}
	granted := 0
	for seed := range uint64(seeds) {
		w := newSNATWorld(t, seed)
		for range steps {
			w.step()
		}
		w.settle()
		granted += w.granted
	}
	if granted < seeds*25 {
		t.Fatalf("%d ranges were granted in %d worlds: too few to prove anything", granted, seeds)
	}
}

// TestNextTermKnowsWhatMuxesAcknowledged: a mux whose stream stays open while the leader changes
// does not repeat its acknowledgement, and does not count as silent. Grants do not wait for a
// deleted mux.
func TestNextTermKnowsWhatMuxesAcknowledged(t *testing.T) {
	w := newSNATWorld(t, 1)
	lead := w.members[0]
	for _, m := range w.muxes {
		w.disconnect(&m.link)
		m.link.at, m.link.session = lead, newSession(t.Context(), identity{name: m.link.name, role: string(m.link.role)})
		m.link.session.snapshot = true
		lead.m.sessions.add(m.link.session)
		m.leases.Begin()
		w.tell(&m.link)
		w.hearMux(m, all)
		w.deliver(&m.link)
	}
	w.resign(lead)
	w.elect(lead)
	for _, m := range w.muxes {
		m.link.up = nil // streams of the leader's own nodes are independent of terms
	}
	w.clock.Advance(2 * snat.DefaultRules.Opening)
	w.tick(lead)
	for _, m := range w.muxes {
		if !lead.duty.desk.Eligible(m.link.name) {
			t.Errorf("%s counts as silent in the next term", m.link.name)
		}
	}
	if n := lead.duty.desk.Counts().Silent; n != 0 {
		t.Errorf("%d silences, want none", n)
	}
	res, err := w.store.Memory.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Delete(ref{lb.KindNode, w.muxes[0].link.name}.key())}})
	w.must(err)
	w.confRev = res.Revision
	w.follow(lead, all)
	lead.duty.configure()
	if lead.duty.desk.Eligible(w.muxes[0].link.name) {
		t.Error("grants wait for a mux that was deleted")
	}
}

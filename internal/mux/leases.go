package mux

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/snat"
)

// Leases is the lease store of a mux: it applies the manager's changes in order and acknowledges
// them. Lock order: hearing, mu.
type Leases struct {
	tables dataplane.MuxSNAT
	clock  clock.Clock
	says   chan struct{}
	moves  chan struct{}
	names  *leaseNames

	// hearing is held while an update is applied, which may wait for the tables.
	hearing sync.Mutex
	book    *snat.Book
	vips    map[snat.VIP]*leasedVIP
	// loading: pages of a snapshot are outstanding.
	loading bool
	mtu     func(outer netip.Addr) uint32
	// news: known and outer are outdated. leasedNews are VIPs of which only knownVIP.leased is
	// outdated. faulty is the number of VIPs that did not fit into the tables.
	news       bool
	leasedNews []snat.VIP
	faulty     int

	mu sync.Mutex
	// ready: the tables have all leases up to revision.
	ready    bool
	revision int64
	// said is the revision acknowledged on this stream. heard is when a manager last confirmed the
	// leases as the newest.
	said  int64
	heard time.Time
	// known are the VIPs with SNAT; changes counts its replacements.
	known   map[netip.Addr]knownVIP
	changes uint64
	outer   []netip.Addr
}

// knownVIP is the state of a VIP with SNAT.
type knownVIP struct {
	// held: the tables have its leases, loaded by this agent or a previous one.
	held bool
	// leased: servers hold ports of it, so that it must be announced for them whatever the health
	// of its endpoints.
	leased bool
	fault  error
	// service is the service that the ports belong to.
	service string
}

// outbound reports whether the tables forward replies to servers that hold ports of the VIP.
func (k knownVIP) outbound() bool { return k.held && k.leased && k.fault == nil }

// NewLeases returns the lease store of a data plane. VIPs whose leases a previous agent loaded stay
// valid for as long as that agent's leases would have been (Remember).
func NewLeases(tables dataplane.MuxSNAT, c clock.Clock) *Leases {
	l := &Leases{
		tables: tables, clock: c, says: make(chan struct{}, 1), moves: make(chan struct{}, 1), book: snat.NewBook(), vips: map[snat.VIP]*leasedVIP{},
		mtu: func(netip.Addr) uint32 { return 0 }, known: map[netip.Addr]knownVIP{}, changes: 1,
	}
	for _, vip := range tables.HeldSNAT() {
		l.known[vip.Addr] = knownVIP{held: true, leased: true}
		l.outer = append(l.outer, heldOuters(tables, vip)...)
	}
	return l
}

// heldOuters returns the tunnel destinations that tables have for a VIP's servers.
func heldOuters(tables dataplane.MuxSNAT, vip snat.VIP) (out []netip.Addr) {
	if t, ok := tables.(dataplane.SNATTeller); ok {
		outers, _, _ := t.SNATWords(vip)
		for _, outer := range outers {
			if outer.IsValid() {
				out = append(out, outer)
			}
		}
	}
	return out
}

// Remember keeps the names of the VIPs with SNAT, and the time of the last confirmation, in a file.
// An agent that starts without a manager may announce a VIP as the newest only if the tables have
// its leases and they were confirmed recently.
func (l *Leases) Remember(file string) error {
	names, had, err := openLeaseNames(file)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = names
	if l.heard = names.heard; l.heard.After(l.clock.Now()) {
		l.heard = never
	}
	for _, vip := range had {
		if _, ok := l.known[vip]; !ok {
			l.known[vip] = knownVIP{}
		}
	}
	return nil
}

// Begin implements agent.Leases. A stream begins with a snapshot; the tables stay as they are until
// it is complete.
func (l *Leases) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = 0
}

// Says implements agent.Leases.
func (l *Leases) Says() <-chan struct{} { return l.says }

// Moves is notified when the set of VIPs to announce may have changed.
func (l *Leases) Moves() <-chan struct{} { return l.moves }

// Obeyed reports that a plan was applied. Leases are acknowledged only after that.
func (l *Leases) Obeyed() { notify.Send(l.says) }

// Say implements agent.Leases. It acknowledges the leases in the tables once packets use them.
func (l *Leases) Say(r *apiv1.NodeReport) bool {
	if !l.tables.ServesSNAT() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready || l.said == l.revision {
		return false
	}
	l.said = l.revision
	r.SnatAck = &apiv1.SnatAck{Revision: l.revision}
	return true
}

// Holder returns the server that holds a port of a VIP, and the VIP's service. False: no server
// holds it, or the VIP has no SNAT.
func (l *Leases) Holder(vip netip.Addr, port uint16) (dip netip.Addr, service string, ok bool) {
	l.hearing.Lock()
	defer l.hearing.Unlock()
	name := snat.VIP{Addr: vip}
	v, p := l.vips[name], l.book.Page(name)
	if v == nil || p == nil {
		return dip, "", false
	}
	dip, ok = p.DIP(snat.RangeOf(port))
	return dip, v.service, ok
}

// Service returns the service of a VIP with SNAT; empty: the VIP has no SNAT, or its leases are not
// loaded.
func (l *Leases) Service(vip netip.Addr) string {
	l.hearing.Lock()
	defer l.hearing.Unlock()
	if v := l.vips[snat.VIP{Addr: vip}]; v != nil {
		return v.service
	}
	return ""
}

// Withheld returns the VIPs for whose ports the tables have no room.
func (l *Leases) Withheld() map[lb.EndpointKey]agent.WithheldVIP {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[lb.EndpointKey]agent.WithheldVIP{}
	for vip, k := range l.known {
		if full := (*dataplane.NoRoom)(nil); errors.As(k.fault, &full) {
			out[lb.EndpointKey{VIP: vip}] = agent.WithheldVIP{Service: k.service, Table: full.Table}
		}
	}
	return out
}

// Revision returns the revision up to which the tables have all leases; 0: none.
func (l *Leases) Revision() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready {
		return 0
	}
	return l.revision
}

// Outers returns the tunnel destinations of all servers, each once. The slice is never changed in
// place.
func (l *Leases) Outers() []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outer
}

// SetPaths sets the path MTUs of all Outers, and the MTU of all other destinations; 0: not known.
func (l *Leases) SetPaths(mtus map[netip.Addr]uint32, others uint32) {
	l.hearing.Lock()
	defer l.hearing.Unlock()
	l.mtu = func(outer netip.Addr) uint32 {
		if mtu, ok := mtus[outer]; ok {
			return mtu
		}
		return others
	}
	for name, v := range l.vips {
		if v.follow(l.mtu) && !l.loading {
			l.set(name, v)
		}
	}
	l.tell()
}

// Hear implements agent.Leases.
func (l *Leases) Hear(up *apiv1.PlanUpdate) error {
	in := up.GetSnatLeases()
	if in == nil {
		return nil
	}
	l.hearing.Lock()
	defer l.hearing.Unlock()
	if err := l.obey(in); err != nil {
		return fmt.Errorf("leases of SNAT ports: %w", err)
	}
	if l.faulty > 0 && !l.loading && len(in.GetBatches()) == 0 {
		l.retry()
	}
	l.tell()
	if in.GetRevision() != 0 {
		l.fresh(in.GetRevision(), in.GetNewest())
	}
	return nil
}

// fresh records that the tables have all leases up to revision. newest: a manager just confirmed
// that it is the newest.
func (l *Leases) fresh(revision int64, newest bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !newest && revision < l.revision {
		l.heard = never // these leases are older than ones that were the newest
		notify.Send(l.moves)
	}
	if newest {
		if l.clock.Now().Sub(l.heard) > DefaultLeaseFor {
			notify.Send(l.moves)
		}
		l.heard = l.clock.Now()
		l.names.hear(l.heard)
	}
	l.ready, l.revision = true, revision
	notify.Send(l.says)
}

// retry gives the tables the VIPs that did not fit.
func (l *Leases) retry() {
	for _, name := range l.ordered() {
		if v := l.vips[name]; v.fault != nil {
			l.set(name, v)
		}
	}
}

// ordered returns the VIPs with SNAT in the order in which they get table space. It does not depend
// on this agent's history.
func (l *Leases) ordered() []snat.VIP {
	return slices.SortedFunc(maps.Keys(l.vips), func(a, b snat.VIP) int { return cmp.Compare(l.vips[a].order, l.vips[b].order) })
}

// tell publishes the VIPs with SNAT and their tunnel destinations if they changed. A change of
// leases alone takes time for its own VIPs only, because thousands of VIPs may get their first
// lease, or return their last one, many times a second.
func (l *Leases) tell() {
	if !l.news {
		l.tellLeased()
		return
	}
	l.news, l.leasedNews, l.faulty = false, nil, 0
	known, outer := make(map[netip.Addr]knownVIP, len(l.vips)), map[netip.Addr]bool{}
	for name, v := range l.vips {
		known[name.Addr] = knownVIP{held: !l.loading, leased: v.leased, fault: v.fault, service: v.service}
		if v.fault != nil {
			l.faulty++
		}
		for _, m := range v.members {
			if m.Outer.IsValid() {
				outer[m.Outer] = true
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loading {
		// The tables keep their contents while a snapshot is loaded.
		for vip, k := range l.known {
			known[vip] = k
		}
	}
	l.known = known
	l.changes++
	if len(outer) != len(l.outer) || slices.ContainsFunc(l.outer, func(a netip.Addr) bool { return !outer[a] }) {
		l.outer = slices.SortedFunc(maps.Keys(outer), netip.Addr.Compare)
	}
	l.names.keep(known)
	notify.Send(l.moves)
}

// tellLeased publishes the VIPs of which servers hold ports for the first time, or no longer.
func (l *Leases) tellLeased() {
	if len(l.leasedNews) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range l.leasedNews {
		k := l.known[name.Addr]
		k.leased = l.vips[name].leased
		l.known[name.Addr] = k
	}
	l.leasedNews = nil
	l.changes++
	notify.Send(l.moves)
}

func (l *Leases) obey(in *apiv1.SnatLeases) error {
	switch {
	case in.GetSnapshot():
		l.book, l.loading, l.news = snat.NewBook(), true, true
	case !l.loading && l.Revision() == 0:
		return fmt.Errorf("a change came before a snapshot")
	}
	for _, raw := range in.GetPages() {
		p, err := snat.UnpackPage(raw)
		if err != nil {
			return err
		}
		l.book.Load(p)
	}
	if in.GetConfigured() {
		if err := l.configure(in.GetVips()); err != nil {
			return err
		}
	}
	for _, raw := range in.GetBatches() {
		if err := l.change(raw); err != nil {
			return err
		}
	}
	if l.loading && in.GetRevision() != 0 {
		l.loading, l.news = false, true
		for _, name := range l.tables.HeldSNAT() {
			if l.vips[name] == nil { // a VIP of a previous agent: this frees its space
				if err := l.tables.SetSNAT(name, nil, nil); err != nil {
					return err
				}
			}
		}
		for _, name := range l.ordered() {
			l.set(name, l.vips[name])
		}
	}
	return nil
}

// configure replaces the VIPs with SNAT, in the order in which they get table space.
func (l *Leases) configure(vips []*apiv1.SnatVIP) error {
	l.news = true
	wanted := make(map[snat.VIP]bool, len(vips))
	var changed []snat.VIP
	for i, in := range vips {
		addr, err := netip.ParseAddr(in.GetVip())
		if err != nil {
			return err
		}
		name := snat.VIP{VNI: in.GetVni(), Addr: addr}
		wanted[name] = true
		v := l.vips[name]
		if v == nil {
			v = &leasedVIP{index: map[netip.Addr]uint16{}}
			l.vips[name] = v
		}
		v.service, v.order = in.GetService(), i
		other, err := v.configure(in.GetDips())
		if err != nil {
			return err
		}
		if v.follow(l.mtu) || other {
			changed = append(changed, name)
		}
	}
	for name := range l.vips {
		if !wanted[name] {
			delete(l.vips, name)
			if err := l.tables.SetSNAT(name, nil, nil); err != nil {
				return err
			}
		}
	}
	for _, name := range changed {
		if !l.loading {
			l.set(name, l.vips[name])
		}
	}
	return nil
}

// set loads all leases of a VIP into the tables. If they do not fit, the VIP is withheld until a
// later update, which retries.
func (l *Leases) set(name snat.VIP, v *leasedVIP) {
	var words [snat.Ranges]uint16
	if p := l.book.Page(name); p != nil {
		p.Words(&words, v.index)
	}
	was := v.fault
	v.fault = l.tables.SetSNAT(name, v.members, &words)
	l.news = l.news || (was == nil) != (v.fault == nil)
	l.count(name, v)
}

// count updates whether servers hold ports of a VIP.
func (l *Leases) count(name snat.VIP, v *leasedVIP) {
	p := l.book.Page(name)
	leased := p != nil && p.Leased() > 0 && len(v.index) > 0
	if leased != v.leased {
		v.leased = leased
		l.leasedNews = append(l.leasedNews, name)
	}
}

// change applies a batch.
func (l *Leases) change(raw []byte) error {
	var b snat.Batch
	if err := b.Unpack(raw); err != nil {
		return err
	}
	if err := l.book.Fold(&b, len(raw)); err != nil {
		return err
	}
	l.book.DropBatch(b.Number) // a mux stores no batches
	if l.loading {
		return nil
	}
	for i := range b.Sections {
		s := &b.Sections[i]
		v := l.vips[s.VIP]
		if v == nil || len(v.members) == 0 || v.fault != nil {
			continue
		}
		changes := make([]dataplane.SNATWord, 0, len(s.Freed)+len(s.Leased))
		for _, r := range s.Freed {
			changes = append(changes, dataplane.SNATWord{Range: r})
		}
		for _, lease := range s.Leased {
			if i, ok := v.index[lease.DIP]; ok {
				changes = append(changes, dataplane.SNATWord{Range: lease.Range, Word: i + 1})
			}
		}
		v.fault = l.tables.ChangeSNAT(s.VIP, changes)
		l.news = l.news || v.fault != nil
		l.count(s.VIP, v)
	}
	return nil
}

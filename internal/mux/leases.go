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

// Leases keeps who has which ports of VIPs: it obeys what the manager says in its order, and acknowledges it. Lock order: hearing, mu.
type Leases struct {
	tables dataplane.MuxSNAT
	clock  clock.Clock
	says   chan struct{}
	moves  chan struct{}
	names  *leaseNames

	// hearing is held while something is obeyed; the tables may wait meanwhile.
	hearing sync.Mutex
	book    *snat.Book
	vips    map[snat.VIP]*leasedVIP
	// loading: pages of a snapshot are still to come.
	loading bool
	mtu     func(outer netip.Addr) uint32
	// news: what tell tells is not so any more. faulty is how many VIPs the tables could not take.
	news   bool
	faulty int

	mu sync.Mutex
	// ready: the tables have all leases up to revision.
	ready    bool
	revision int64
	// said is the revision that was acknowledged on this stream, heard when it was heard last that these are the newest.
	said  int64
	heard time.Time
	// known are the VIPs with SNAT; changes counts how often it was replaced.
	known   map[netip.Addr]knownVIP
	changes uint64
	outer   []netip.Addr
}

// knownVIP is what is known of a VIP with SNAT.
type knownVIP struct {
	// held: the tables have words of it, of this agent or of one before.
	held bool
	// leased: servers hold ports of it, so that it must be announced for them whatever the health of endpoints is.
	leased bool
	fault  error
	// service is that of the ports.
	service string
}

// outbound tells whether the tables send answers to servers that hold ports of the VIP.
func (k knownVIP) outbound() bool { return k.held && k.leased && k.fault == nil }

// NewLeases makes leases of a data plane. VIPs of which it has words of an agent before are as they were, as long as that one's leases
// would have lasted (Remember).
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

// heldOuters returns the outer destinations that tables have of a VIP's servers.
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

// Remember keeps the names of the VIPs with SNAT in a file, and when it was heard that leases are the newest: an agent that starts
// without a manager may advertise VIPs only if it has their words, and those were the newest not long ago.
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

// Begin implements agent.Leases: the stream begins with a snapshot, and the tables stay as they are until it is there.
func (l *Leases) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = 0
}

// Says implements agent.Leases.
func (l *Leases) Says() <-chan struct{} { return l.says }

// Moves is poked when other VIPs may be advertised.
func (l *Leases) Moves() <-chan struct{} { return l.moves }

// Obeyed says that the tables obey a plan: what they have of leases is acknowledged only then.
func (l *Leases) Obeyed() { notify.Send(l.says) }

// Say implements agent.Leases: it acknowledges what the tables have, once packets meet them.
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

// Holder is the server that has a port of a VIP, and the VIP's service; false: none, or the VIP has no SNAT.
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

// Service is the service of a VIP with SNAT; empty: it has none, or its leases are not loaded.
func (l *Leases) Service(vip netip.Addr) string {
	l.hearing.Lock()
	defer l.hearing.Unlock()
	if v := l.vips[snat.VIP{Addr: vip}]; v != nil {
		return v.service
	}
	return ""
}

// Withheld are the VIPs whose ports the tables have no room for.
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

// Revision is up to which the tables have all leases; 0: they have none.
func (l *Leases) Revision() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready {
		return 0
	}
	return l.revision
}

// Outers are the outer destinations of all servers, each once. Nobody changes them in place.
func (l *Leases) Outers() []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outer
}

// SetPaths takes the MTUs of the paths to all of Outers, and of those to others; 0: not known.
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

// fresh says that the tables have all leases up to a revision, and that it was the newest just now.
func (l *Leases) fresh(revision int64, newest bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !newest && revision < l.revision {
		l.heard = never // these are older than what was the newest
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

// retry gives the tables what they could not take.
func (l *Leases) retry() {
	for _, name := range l.ordered() {
		if v := l.vips[name]; v.fault != nil {
			l.set(name, v)
		}
	}
}

// ordered are the VIPs with SNAT in the order in which they get room, which does not depend on this agent's past.
func (l *Leases) ordered() []snat.VIP {
	return slices.SortedFunc(maps.Keys(l.vips), func(a, b snat.VIP) int { return cmp.Compare(l.vips[a].order, l.vips[b].order) })
}

// tell lets others know of the VIPs there are, when that is news.
func (l *Leases) tell() {
	if !l.news {
		return
	}
	l.news, l.faulty = false, 0
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
		// The tables have what they had.
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
			if l.vips[name] == nil { // of an agent before: it makes room
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

// configure makes these the VIPs with SNAT, in the order in which they get room.
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

// set gives the tables all of a VIP. What they cannot take is tried again with whatever is heard next; the VIP is withheld until then.
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

// count finds out whether servers hold ports of a VIP.
func (l *Leases) count(name snat.VIP, v *leasedVIP) {
	p := l.book.Page(name)
	leased := p != nil && p.Leased() > 0 && len(v.index) > 0
	l.news = l.news || leased != v.leased
	v.leased = leased
}

// change takes in a batch.
func (l *Leases) change(raw []byte) error {
	var b snat.Batch
	if err := b.Unpack(raw); err != nil {
		return err
	}
	if err := l.book.Fold(&b, len(raw)); err != nil {
		return err
	}
	l.book.DropBatch(b.Number) // a mux stores nothing
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

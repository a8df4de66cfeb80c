package mux

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// DefaultLeaseFor is how long a mux that hears nothing of leases goes on with those that it has: many times as long as managers take
// to say that they are the newest, and far shorter than a range rests.
const DefaultLeaseFor = 10 * time.Second

// Leases keeps who has which ports of VIPs: it obeys what the manager says in its order, and acknowledges it.
type Leases struct {
	tables dataplane.MuxSNAT
	clock  clock.Clock
	says   chan struct{}

	mu   sync.Mutex
	book *snat.Book
	vips map[snat.VIP]*leasedVIP
	// loading: pages of a snapshot are still to come; ready: the tables have all leases up to revision.
	loading, ready bool
	revision       int64
	// said is the revision that was acknowledged on this stream, heard when something of leases was heard last.
	said  int64
	heard time.Time
	used  bool // a manager said something of leases
}

// leasedVIP is a VIP with SNAT in the tables.
type leasedVIP struct {
	members []dataplane.SNATMember
	// index of each DIP in members; a DIP that goes leaves its place to another one.
	index map[netip.Addr]uint16
}

// NewLeases makes leases of a data plane.
func NewLeases(tables dataplane.MuxSNAT, c clock.Clock) *Leases {
	return &Leases{tables: tables, clock: c, says: make(chan struct{}, 1), book: snat.NewBook(), vips: map[snat.VIP]*leasedVIP{}}
}

// Begin implements agent.Leases: the stream begins with a snapshot, and the tables stay as they are until it is there.
func (l *Leases) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = 0
}

// Says implements agent.Leases.
func (l *Leases) Says() <-chan struct{} { return l.says }

// Say implements agent.Leases: it acknowledges what the tables have.
func (l *Leases) Say(r *apiv1.NodeReport) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready || l.said == l.revision {
		return false
	}
	l.said = l.revision
	r.SnatAck = &apiv1.SnatAck{Revision: l.revision}
	return true
}

// Valid tells whether a VIP may be advertised: it has no SNAT, or the tables have its leases, and have had the newest for a time.
func (l *Leases) Valid(vip netip.Addr, lasts time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.used || l.vips[snat.VIP{Addr: vip}] == nil {
		return true
	}
	return l.ready && (lasts <= 0 || l.clock.Now().Sub(l.heard) <= lasts)
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

// Hear implements agent.Leases.
func (l *Leases) Hear(up *apiv1.PlanUpdate) error {
	in := up.GetSnatLeases()
	if in == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = true
	if err := l.obeyLocked(in); err != nil {
		return fmt.Errorf("leases of SNAT ports: %w", err)
	}
	if in.GetRevision() != 0 {
		l.ready, l.revision, l.heard = true, in.GetRevision(), l.clock.Now()
		signal(l.says)
	}
	return nil
}

func (l *Leases) obeyLocked(in *apiv1.SnatLeases) error {
	switch {
	case in.GetSnapshot():
		l.book, l.loading = snat.NewBook(), true
	case !l.loading && !l.ready:
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
		if err := l.configureLocked(in.GetVips()); err != nil {
			return err
		}
	}
	for _, raw := range in.GetBatches() {
		if err := l.changeLocked(raw); err != nil {
			return err
		}
	}
	if l.loading && in.GetRevision() != 0 {
		l.loading = false
		for name, v := range l.vips {
			if err := l.setLocked(name, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// configureLocked makes these the VIPs with SNAT.
func (l *Leases) configureLocked(vips []*apiv1.SnatVIP) error {
	wanted := make(map[snat.VIP]bool, len(vips))
	for _, in := range vips {
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
		changed, err := v.configure(in.GetDips())
		if err != nil {
			return err
		}
		if changed && !l.loading {
			if err := l.setLocked(name, v); err != nil {
				return err
			}
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
	return nil
}

// configure makes these the DIPs; those that stay keep their places.
func (v *leasedVIP) configure(dips []*apiv1.SnatDIP) (changed bool, err error) {
	wanted := make(map[netip.Addr]dataplane.SNATMember, len(dips))
	for _, d := range dips {
		m := dataplane.SNATMember{Encap: d.GetEncap()}
		if m.DIP, err = netip.ParseAddr(d.GetDip()); err != nil {
			return false, err
		}
		if m.Outer, err = netip.ParseAddr(d.GetOuter()); err != nil {
			return false, err
		}
		wanted[m.DIP] = m
	}
	for dip, i := range v.index {
		if _, ok := wanted[dip]; !ok {
			delete(v.index, dip)
			v.members[i], changed = dataplane.SNATMember{}, true
		}
	}
	for dip, m := range wanted {
		i, ok := v.index[dip]
		if !ok {
			free := slices.Index(v.members, dataplane.SNATMember{})
			if free < 0 {
				free = len(v.members)
				v.members = append(v.members, dataplane.SNATMember{})
			}
			i = uint16(free)
			v.index[dip] = i
		}
		changed = changed || v.members[i] != m
		v.members[i] = m
	}
	return changed, nil
}

// setLocked gives the tables all of a VIP.
func (l *Leases) setLocked(name snat.VIP, v *leasedVIP) error {
	var words [snat.Ranges]uint16
	if p := l.book.Page(name); p != nil {
		p.Words(&words, v.index)
	}
	return l.tables.SetSNAT(name, v.members, &words)
}

// changeLocked takes in a batch.
func (l *Leases) changeLocked(raw []byte) error {
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
		if v == nil || len(v.members) == 0 {
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
		if err := l.tables.ChangeSNAT(s.VIP, changes); err != nil {
			return err
		}
	}
	return nil
}

// signal pokes a channel with room for one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

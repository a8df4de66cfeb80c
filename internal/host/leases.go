package host

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/snat"
)

const (
	// leasesUsePace is the interval of reading which ranges were used.
	leasesUsePace = 10 * time.Second
	// leasesRest is how long a range is out of use before it is returned: longer than a program
	// needs for a packet.
	leasesRest = 500 * time.Millisecond
)

// Leases manages the SNAT ranges of the host's servers. It requests more when ports get scarce, and
// returns idle ones.
type Leases struct {
	tables dataplane.HostSNAT
	clock  clock.Clock
	log    *slog.Logger
	rules  snat.StockRules
	says   chan struct{}
	// stirred is notified, with room for one, when the next due time may have changed.
	stirred chan struct{}

	mu     sync.Mutex
	stocks map[snat.Holder]*snat.Stock
	// resting are ranges that are to be returned: new connections do not take their ports.
	resting map[snat.Holder]map[snat.Range]rest
	// most is how many DIPs the tables have room for; fault is the reported reason for those
	// without room.
	most  int
	fault string
	// ready are the holders that may have something to report.
	ready map[snat.Holder]bool
}

// rest holds since when a range rests, and whether its return was reported to the manager.
type rest struct {
	since time.Time
	given bool
}

// NewLeases returns the leases of a data plane. Run must be called.
func NewLeases(tables dataplane.HostSNAT, rules snat.StockRules, c clock.Clock, log *slog.Logger) *Leases {
	return &Leases{
		tables: tables, clock: c, log: log, rules: rules, says: make(chan struct{}, 1), stirred: make(chan struct{}, 1),
		stocks: map[snat.Holder]*snat.Stock{}, resting: map[snat.Holder]map[snat.Range]rest{}, ready: map[snat.Holder]bool{}, most: dataplane.MaxSNATServers,
	}
}

// room returns how many DIPs have room in the tables, and the fault for those that have none.
func (l *Leases) room() (used int, fault string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.stocks), l.fault
}

// Begin implements agent.Leases. It requests everything again, because responses on the last stream
// may be lost.
func (l *Leases) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h, s := range l.stocks {
		s.Afresh()
		l.ready[h] = true
	}
	l.stirLocked()
}

// Says implements agent.Leases.
func (l *Leases) Says() <-chan struct{} { return l.says }

// Say implements agent.Leases.
func (l *Leases) Say(r *apiv1.NodeReport) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, any := l.clock.Now(), false
	uses := sync.OnceValues(l.usesByHolder)
	for h := range l.ready {
		delete(l.ready, h)
		s := l.stocks[h]
		if s == nil {
			continue
		}
		said, ok := s.Tick(now)
		if !ok {
			continue
		}
		said.Return = l.restLocked(h, s, said.Return, uses, now)
		any = any || said.Ask || said.Sync || len(said.Return) > 0
		m := convert.ToSNATHolder(h)
		if said.Ask || said.Sync {
			r.SnatAsks = append(r.SnatAsks, &apiv1.SnatAsk{Holder: m, Want: 1, Sync: said.Sync, Held: convert.ToSNATRanges(said.Held)})
		}
		if len(said.Return) > 0 {
			r.SnatReturns = append(r.SnatReturns, &apiv1.SnatReturn{Holder: m, Ranges: convert.ToSNATRanges(said.Return)})
		}
	}
	notify.Send(l.stirred)
	return any
}

// restLocked returns the ranges to return now, out of those that new connections no longer use. A
// range must rest for leasesRest first, so that every connection that took a port of it meanwhile
// is visible. A range with such a connection is kept. uses returns the present use. mu is held.
func (l *Leases) restLocked(
	h snat.Holder, s *snat.Stock, out []snat.Range, uses func() (map[snat.Holder][]dataplane.SNATUse, error), now time.Time,
) (give []snat.Range) {
	rests := l.resting[h]
	var asked map[snat.Range]bool
	for _, r := range out {
		at, ok := rests[r]
		switch {
		case !ok:
			if rests == nil {
				rests = map[snat.Range]rest{}
				l.resting[h] = rests
			}
			rests[r] = rest{since: now}
			continue
		case at.given:
			give = append(give, r)
			continue
		case now.Sub(at.since) < leasesRest:
			continue
		}
		if asked == nil {
			all, err := uses()
			if err != nil {
				l.log.Error("cannot tell which ports are used", "error", err)
				return give
			}
			asked = usedSince(all[h], rests)
		}
		if asked[r] {
			s.Keep(r, now)
			delete(rests, r)
			continue
		}
		rests[r] = rest{at.since, true}
		give = append(give, r)
	}
	l.tableLocked(h, s)
	return give
}

// restedLocked drops the rest of ranges that the DIP no longer has. mu is held.
func (l *Leases) restedLocked(h snat.Holder, s *snat.Stock) {
	for r := range l.resting[h] {
		if !s.Has(r) {
			delete(l.resting[h], r)
		}
	}
	if len(l.resting[h]) == 0 {
		delete(l.resting, h)
	}
}

// usedSince returns the ranges that were used since they rest, or up to leasesUsePace before.
func usedSince(uses []dataplane.SNATUse, rests map[snat.Range]rest) map[snat.Range]bool {
	out := map[snat.Range]bool{}
	for _, u := range uses {
		if at, ok := rests[u.Range]; ok && u.At.After(at.since.Add(-leasesUsePace)) {
			out[u.Range] = true
		}
	}
	return out
}

// usesByHolder returns when ranges were used last, by holder, because thousands of servers may
// return ranges at the same time.
func (l *Leases) usesByHolder() (map[snat.Holder][]dataplane.SNATUse, error) {
	uses, err := l.tables.Uses()
	if err != nil {
		return nil, err
	}
	out := map[snat.Holder][]dataplane.SNATUse{}
	for _, u := range uses {
		out[u.Holder] = append(out[u.Holder], u)
	}
	return out, nil
}

// Hear implements agent.Leases.
func (l *Leases) Hear(up *apiv1.PlanUpdate) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if in := up.GetSnatHolders(); in != nil {
		if err := l.holdersLocked(in); err != nil {
			return err
		}
	}
	now, in := l.clock.Now(), up.GetSnatAnswers()
	touched := map[snat.Holder]bool{}
	for _, m := range in.GetAnswers() {
		a, err := convert.FromSNATAnswer(m)
		if err != nil {
			return err
		}
		if s := l.stocks[a.Holder]; s != nil {
			s.Hear(a, in.GetEpoch(), now)
			touched[a.Holder], l.ready[a.Holder] = true, true
		}
	}
	for h := range touched {
		l.restedLocked(h, l.stocks[h])
		l.tableLocked(h, l.stocks[h])
	}
	if len(l.ready) > 0 {
		l.stirLocked()
	}
	return nil
}

// holdersLocked sets the DIPs that may have ranges. The table of a removed DIP is emptied
// immediately. mu is held.
func (l *Leases) holdersLocked(in *apiv1.SnatHolders) error {
	idles := make(map[snat.Holder]time.Duration, len(in.GetHolders()))
	for _, m := range in.GetHolders() {
		h, idle, err := convert.FromSNATHolding(m)
		if err != nil {
			return fmt.Errorf("DIPs with SNAT: %w", err)
		}
		idles[h] = idle
	}
	placed := make(map[snat.Holder]bool, len(l.stocks))
	for h := range l.stocks {
		placed[h] = true
	}
	holders, left := fitHolders(slices.Collect(maps.Keys(idles)), placed, l.most)
	if fault := holderFault(left); fault != l.fault {
		if l.fault = fault; fault != "" {
			l.log.Warn("servers get no ports", "reason", fault)
		}
	}
	wanted := make(map[snat.Holder]bool, len(holders))
	for _, h := range holders {
		wanted[h] = true
		if l.stocks[h] == nil {
			l.stocks[h] = snat.NewStock(l.rules)
		}
		l.stocks[h].SetIdle(idles[h])
		l.ready[h] = true
	}
	if err := l.tables.SetHolders(holders); err != nil {
		l.log.Error("cannot tell the tables which servers have SNAT", "error", err)
	}
	for h := range l.stocks {
		if !wanted[h] {
			delete(l.stocks, h)
			delete(l.ready, h)
			delete(l.resting, h)
			if err := l.tables.SetRanges(h, nil, nil); err != nil {
				l.log.Error("cannot take ports from a server", "vip", h.VIP.Addr, "dip", h.DIP, "error", err)
			}
		}
	}
	return nil
}

// tableLocked writes the ranges of a DIP to the data plane. Until the manager has sent the DIP's
// ranges, the table stays as the previous agent left it. mu is held.
func (l *Leases) tableLocked(h snat.Holder, s *snat.Stock) {
	if !s.Known() || !s.Changed() {
		return
	}
	usable, leaving := s.Usable()
	// Connections that took a port of a range at the last moment keep it. Then the range is not
	// returned.
	for r, at := range l.resting[h] {
		if !at.given && s.Has(r) && !slices.Contains(usable, r) && !slices.Contains(leaving, r) {
			leaving = append(leaving, r)
		}
	}
	slices.Sort(leaving)
	if err := l.tables.SetRanges(h, usable, leaving); err != nil {
		l.log.Error("cannot give ports to a server", "vip", h.VIP.Addr, "dip", h.DIP, "error", err)
	}
}

func (l *Leases) stirLocked() {
	notify.Send(l.says)
	notify.Send(l.stirred)
}

// Run sends requests when they are due until ctx ends.
func (l *Leases) Run(ctx context.Context) {
	uses := l.clock.After(leasesUsePace)
	for {
		select {
		case h := <-l.tables.Low():
			l.low(h)
			continue
		case <-uses:
			uses = l.clock.After(leasesUsePace)
			l.look()
		case <-l.stirred:
		case <-l.due():
			l.askAll()
		case <-ctx.Done():
			return
		}
	}
}

// Poll does the work of Run once, for callers that drive the clock: it reads which DIPs are low and
// which ranges were used, and makes every DIP report.
func (l *Leases) Poll() {
	for {
		select {
		case h := <-l.tables.Low():
			l.low(h)
			continue
		default:
		}
		l.look()
		l.askAll()
		return
	}
}

// low records that a DIP's ports got scarce.
func (l *Leases) low(h snat.Holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.stocks[h]; s != nil {
		s.Low()
		l.ready[h] = true
		notify.Send(l.says)
	}
}

// askAll makes every DIP report.
func (l *Leases) askAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.stocks {
		l.ready[h] = true
	}
	notify.Send(l.says)
}

// look records which ranges were used, before any of them is returned.
func (l *Leases) look() {
	uses, err := l.tables.Uses()
	if err != nil {
		l.log.Error("cannot tell which ports are used", "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range uses {
		if s := l.stocks[u.Holder]; s != nil {
			s.Used(u.Range, u.At)
		}
	}
}

// dueFloor is the minimum time between two scans of all DIPs for reports that are due by time
// alone.
const dueFloor = 50 * time.Millisecond

// due returns a channel that fires when a DIP has something to report by time alone, or nil if none
// has.
func (l *Leases) due() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, due := l.clock.Now(), time.Time{}
	for h, s := range l.stocks {
		if l.ready[h] {
			continue // Say handles it soon
		}
		if at := s.Due(now); !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	if due.IsZero() {
		return nil
	}
	return l.clock.After(max(due.Sub(now), dueFloor))
}

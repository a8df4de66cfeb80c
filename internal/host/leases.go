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
	// leasesUsePace is how often the host looks which ranges were used.
	leasesUsePace = 10 * time.Second
	// leasesRest is for how long the tables do without a range before it is given back: longer than a packet is in a program.
	leasesRest = 500 * time.Millisecond
)

// Leases keeps the ranges of the host's servers: it asks for more when ports get scarce, and gives idle ones back.
type Leases struct {
	tables dataplane.HostSNAT
	clock  clock.Clock
	log    *slog.Logger
	rules  snat.StockRules
	says   chan struct{}
	// stirred has room for one: what is due may have changed.
	stirred chan struct{}

	mu     sync.Mutex
	stocks map[snat.Holder]*snat.Stock
	// resting are ranges that are to be given back: new connections do not take their ports.
	resting map[snat.Holder]map[snat.Range]rest
	// most is how many DIPs the tables have room for, fault what is reported of those that have no place.
	most  int
	fault string
	// ready are those that may have something to say.
	ready map[snat.Holder]bool
}

// rest is since when a range rests, and whether the manager was told that it may have it.
type rest struct {
	since time.Time
	given bool
}

// NewLeases makes leases of a data plane. Run must run.
func NewLeases(tables dataplane.HostSNAT, rules snat.StockRules, c clock.Clock, log *slog.Logger) *Leases {
	return &Leases{
		tables: tables, clock: c, log: log, rules: rules, says: make(chan struct{}, 1), stirred: make(chan struct{}, 1),
		stocks: map[snat.Holder]*snat.Stock{}, resting: map[snat.Holder]map[snat.Range]rest{}, ready: map[snat.Holder]bool{}, most: dataplane.MaxSNATServers,
	}
}

// room is how many DIPs have a place in the tables, and what is reported of those that have none.
func (l *Leases) room() (used int, fault string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.stocks), l.fault
}

// Begin implements agent.Leases: answers to what was said on the last stream may be lost.
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

// restLocked is which of the ranges that the tables do not use for new connections any more are given back: those that were told of before, so
// that every connection that took a port of them meanwhile is known. A range that has one is kept. uses tells what is used now.
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

// restedLocked forgets the rest of ranges that the DIP does not have any more.
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

// usedSince are the ranges that were used since they rest, or so little before that it could be the same.
func usedSince(uses []dataplane.SNATUse, rests map[snat.Range]rest) map[snat.Range]bool {
	out := map[snat.Range]bool{}
	for _, u := range uses {
		if at, ok := rests[u.Range]; ok && u.At.After(at.since.Add(-leasesUsePace)) {
			out[u.Range] = true
		}
	}
	return out
}

// usesByHolder is when ranges were used last, by who has them: thousands of servers may have ranges to give back at one time.
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

// holdersLocked makes these the DIPs that may have ranges. The table of one that is gone is emptied at once.
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

// tableLocked gives the data plane what a DIP may use. Until the manager has said what it has, the table stays as an agent before
// left it.
func (l *Leases) tableLocked(h snat.Holder, s *snat.Stock) {
	if !s.Known() || !s.Changed() {
		return
	}
	usable, leaving := s.Usable()
	// Connections that took a port of a range at the last moment keep it: then the range is not given back.
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

// Run asks in time until ctx ends.
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

// Poll does at once what Run does in its time, for who moves the clock: it takes in which DIPs are low and what was used, and looks at
// all that may be due.
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

// low notes that a DIP's ports got scarce.
func (l *Leases) low(h snat.Holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.stocks[h]; s != nil {
		s.Low()
		l.ready[h] = true
		notify.Send(l.says)
	}
}

// askAll lets every DIP say what is due.
func (l *Leases) askAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.stocks {
		l.ready[h] = true
	}
	notify.Send(l.says)
}

// look notes which ranges were used, before any of them is given back.
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

// dueFloor is the least time between two looks at all DIPs for what time alone makes due.
const dueFloor = 50 * time.Millisecond

// due fires when a DIP has something to say by time alone.
func (l *Leases) due() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, due := l.clock.Now(), time.Time{}
	for h, s := range l.stocks {
		if l.ready[h] {
			continue // it is about to be asked
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

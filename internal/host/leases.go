package host

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// leasesUsePace is how often the host looks which ranges were used.
const leasesUsePace = 10 * time.Second

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
	// ready are those that may have something to say.
	ready map[snat.Holder]bool
}

// NewLeases makes leases of a data plane. Run must run.
func NewLeases(tables dataplane.HostSNAT, rules snat.StockRules, c clock.Clock, log *slog.Logger) *Leases {
	return &Leases{
		tables: tables, clock: c, log: log, rules: rules, says: make(chan struct{}, 1), stirred: make(chan struct{}, 1),
		stocks: map[snat.Holder]*snat.Stock{}, ready: map[snat.Holder]bool{},
	}
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
		any = true
		m := convert.ToSNATHolder(h)
		if said.Ask || said.Sync {
			r.SnatAsks = append(r.SnatAsks, &apiv1.SnatAsk{Holder: m, Want: 1, Sync: said.Sync, Held: convert.ToSNATRanges(said.Held)})
		}
		if len(said.Return) > 0 {
			r.SnatReturns = append(r.SnatReturns, &apiv1.SnatReturn{Holder: m, Ranges: convert.ToSNATRanges(said.Return)})
		}
		l.tableLocked(h, s)
	}
	signal(l.stirred)
	return any
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
		l.tableLocked(h, l.stocks[h])
	}
	if len(l.ready) > 0 {
		l.stirLocked()
	}
	return nil
}

// holdersLocked makes these the DIPs that may have ranges. The table of one that is gone is emptied at once.
func (l *Leases) holdersLocked(in *apiv1.SnatHolders) error {
	wanted := make(map[snat.Holder]bool, len(in.GetHolders()))
	for _, m := range in.GetHolders() {
		h, err := convert.FromSNATHolder(m)
		if err != nil {
			return fmt.Errorf("DIPs with SNAT: %w", err)
		}
		wanted[h] = true
		if l.stocks[h] == nil {
			l.stocks[h] = snat.NewStock(l.rules)
			l.ready[h] = true
		}
	}
	for h := range l.stocks {
		if !wanted[h] {
			delete(l.stocks, h)
			delete(l.ready, h)
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
	if err := l.tables.SetRanges(h, usable, leaving); err != nil {
		l.log.Error("cannot give ports to a server", "vip", h.VIP.Addr, "dip", h.DIP, "error", err)
	}
}

func (l *Leases) stirLocked() {
	signal(l.says)
	signal(l.stirred)
}

// Run asks in time until ctx ends.
func (l *Leases) Run(ctx context.Context) {
	uses := l.clock.After(leasesUsePace)
	for {
		select {
		case h := <-l.tables.Low():
			l.mu.Lock()
			if s := l.stocks[h]; s != nil {
				s.Low()
				l.ready[h] = true
				signal(l.says)
			}
			l.mu.Unlock()
			continue
		case <-uses:
			uses = l.clock.After(leasesUsePace)
			l.look()
		case <-l.stirred:
		case <-l.due():
			l.mu.Lock()
			for h := range l.stocks {
				l.ready[h] = true
			}
			signal(l.says)
			l.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
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

// Holding is how many ranges the host's servers may use, and how many of its DIPs wait for some.
func (l *Leases) Holding() (ranges, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.stocks {
		usable, leaving := s.Usable()
		ranges += len(usable) + len(leaving)
		if len(usable) == 0 {
			waiting++
		}
	}
	return ranges, waiting
}

// signal pokes a channel with room for one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

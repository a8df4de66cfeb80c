package sched

import (
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Desk is the scheduler of an endpoint: it periodically converts the members' loads to the
// sequences and packed loads that packets are scheduled by. It begins with the first Next.
type Desk struct {
	// Scheduler is one of lb's, except lb.SchedulerMaglev.
	Scheduler string
	// Units: loads have another unit than connections.
	Units bool

	shares   []Share
	sequence []uint16
	told     map[uint16]tale
	basin    Basin
	given    given
	begun    bool
	at       time.Time
	taken    uint32
	total    Rate // of new connections at all muxes
	own      Rate // of those that this mux scheduled
}

// tale is the last state of a member.
type tale struct {
	opened uint32
	counts bool // opened is known
}

// Orders holds the new tables for packets.
type Orders struct {
	Sequence []uint16
	Changed  bool   // the sequence differs from the previous one
	Loads    []Word // packed loads of members that need a new one; only with lb.SchedulerP2C
	// Unknown is the number of members without a known load, with schedulers that use loads; the
	// average of the others is used for them.
	Unknown int
}

// Word is the packed load of a member (WordOf).
type Word struct {
	ID   uint16
	Word uint64
}

// News is the input of Next since the last call.
type News struct {
	Members []Member // all that are active
	Taken   uint32   // how often packets took a member from sequences so far, modulo 2^32
	Now     time.Time
	Every   time.Duration // until the next call
	Lag     time.Duration // average age of the hosts' last reports
}

// Next returns the next orders.
func (d *Desk) Next(n News) Orders {
	var out Orders
	members := n.Members
	if d.loaded() {
		members, out.Unknown = Assume(n.Members)
		if d.Units {
			members = InConnections(members)
		}
	}
	came := d.came(n)
	shares := d.share(members, out.Unknown, came, n)
	if d.Scheduler == lb.SchedulerP2C {
		out.Loads = d.given.reckon(members, out.Unknown < len(members), n)
	}
	d.remember(n)
	if out.Changed = !d.begun || !slices.Equal(shares, d.shares); out.Changed {
		d.shares, d.sequence, d.begun = shares, Sequence(shares), true
	}
	out.Sequence = d.sequence
	return out
}

// loaded reports whether the scheduler uses loads.
func (d *Desk) loaded() bool {
	e := lb.Endpoint{Scheduler: d.Scheduler}
	return e.Loaded()
}

// share returns the share of new connections of each member.
func (d *Desk) share(members []Member, unknown int, came arrivals, n News) []Share {
	known := unknown < len(members)
	switch {
	case d.Scheduler == lb.SchedulerRoundRobin:
		return Even(members)
	case d.Scheduler == lb.SchedulerAdaptive && known:
		return Adaptive(members)
	case d.Scheduler == lb.SchedulerLeastConnections && known:
		// Use some more places, so that a sudden burst does not go to one member.
		arriving := max(came.next, len(members)/4, 1)
		return d.basin.Fill(members, came.last, min(arriving, MaxLength), n.Now, n.Lag)
	}
	return ByWeight(members)
}

// arrivals counts new connections at all muxes.
type arrivals struct {
	last float64 // since the last call
	next int     // expected until the next call
}

// came estimates the number of new connections by the hosts' counters and by the connections that
// this mux scheduled, whichever is more, because hosts report late, and do not count a SYN flood.
func (d *Desk) came(n News) arrivals {
	// A larger difference means other counters: another host, or recreated tables.
	const sane = 1 << 24
	opened := 0.0
	for _, m := range n.Members {
		if t, before := d.told[m.ID]; before && t.counts && m.HasConnections && m.Opened-t.opened < sane {
			opened += float64(m.Opened - t.opened)
		}
	}
	own := 0.0
	if d.begun {
		if since := n.Taken - d.taken; since < sane { // else the program was reloaded
			own = float64(since)
		}
	}
	passed := n.Now.Sub(d.at).Seconds()
	if !d.begun {
		passed = 0
	}
	rate := max(d.total.Happened(opened, n.Now), d.own.Happened(own, n.Now))
	d.taken, d.at = n.Taken, n.Now
	last := max(rate*passed, own)
	next := rate * n.Every.Seconds()
	if passed > 0 {
		next = max(next, own*n.Every.Seconds()/passed)
	}
	return arrivals{last, int(next + 0.5)}
}

// remember stores the state of the current members.
func (d *Desk) remember(n News) {
	next := make(map[uint16]tale, len(n.Members))
	for _, m := range n.Members {
		next[m.ID] = tale{m.Opened, m.HasConnections}
	}
	d.told = next
}

// Muxes returns the estimated number of muxes, assuming that each schedules as many connections as
// this one.
func (d *Desk) Muxes() float64 {
	if d.own.perSecond <= 0 {
		return 1
	}
	return max(d.total.perSecond/d.own.perSecond, 1)
}

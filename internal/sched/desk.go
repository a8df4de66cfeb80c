package sched

import (
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Desk turns what a mux knows of an endpoint's members, time and again, into what packets go by. It begins with the first Next.
type Desk struct {
	// Scheduler is one of lb's, but for lb.SchedulerMaglev.
	Scheduler string
	// Units: loads are in another unit than connections.
	Units bool

	shares   []Share
	sequence []uint16
	told     map[uint16]tale
	basin    Basin
	given    given
	begun    bool
	at       time.Time
	taken    uint32
	total    Rate // of connections that begin, over all muxes
	own      Rate // of those that this mux gave
}

// tale is what was known of a member last.
type tale struct {
	opened uint32
	counts bool // opened was known
}

// Orders are what packets go by from now on.
type Orders struct {
	Sequence []uint16
	Changed  bool   // the sequence is another one than before
	Loads    []Word // of members that are to have another; lb.SchedulerP2C alone has any
	// Unknown is how many members' loads are not known, with schedulers that look at loads: what the others have on average counts for them.
	Unknown int
}

// Word is the word of a member's load (WordOf).
type Word struct {
	ID   uint16
	Word uint64
}

// News is what became known to a mux since it was asked last.
type News struct {
	Members []Member // all that take part
	Taken   uint32   // how often packets took a member from sequences so far, modulo 2^32
	Now     time.Time
	Every   time.Duration // until the next time
	Lag     time.Duration // how long ago hosts saw what they told last, on average
}

// Next makes the next orders.
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

// loaded tells whether the scheduler looks at loads.
func (d *Desk) loaded() bool {
	e := lb.Endpoint{Scheduler: d.Scheduler}
	return e.Loaded()
}

// share is what each member is to be given.
func (d *Desk) share(members []Member, unknown int, came arrivals, n News) []Share {
	known := unknown < len(members)
	switch {
	case d.Scheduler == lb.SchedulerRoundRobin:
		return Even(members)
	case d.Scheduler == lb.SchedulerAdaptive && known:
		return Adaptive(members)
	case d.Scheduler == lb.SchedulerLeastConnections && known:
		// Some places more than that, so that a crowd that comes out of nothing does not meet one member.
		arriving := max(came.next, len(members)/4, 1)
		return d.basin.Fill(members, came.last, min(arriving, MaxLength), n.Now, n.Lag)
	}
	return ByWeight(members)
}

// arrivals are connections of all muxes.
type arrivals struct {
	last float64 // since the last time
	next int     // to be expected until the next
}

// came estimates how many connections come, by what hosts counted and by what this mux gave, whichever is more: hosts tell late, and of a flood of SYNs
// nothing.
func (d *Desk) came(n News) arrivals {
	// More at once are not counted by whoever counted before: another host, or tables that were made anew.
	const sane = 1 << 24
	opened := 0.0
	for _, m := range n.Members {
		if t, before := d.told[m.ID]; before && t.counts && m.HasConnections && m.Opened-t.opened < sane {
			opened += float64(m.Opened - t.opened)
		}
	}
	own := 0.0
	if d.begun {
		if since := n.Taken - d.taken; since < sane { // else the program was loaded anew
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

// remember keeps what is known of the members that there are.
func (d *Desk) remember(n News) {
	next := make(map[uint16]tale, len(n.Members))
	for _, m := range n.Members {
		next[m.ID] = tale{m.Opened, m.HasConnections}
	}
	d.told = next
}

// Muxes is how many muxes there seem to be that give as many connections as this one.
func (d *Desk) Muxes() float64 {
	if d.own.perSecond <= 0 {
		return 1
	}
	return max(d.total.perSecond/d.own.perSecond, 1)
}

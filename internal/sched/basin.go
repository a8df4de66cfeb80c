package sched

import (
	"math"
	"time"
)

// Basin is the state of least-connections between sequences. Reported loads are old, and members
// that were low then were filled since. Without it the same members would be filled twice, by one
// mux, and by all that receive the same loads. The zero Basin is empty.
//
// Every mux computes with the connections of all muxes, not with its own part: all receive the same
// loads, and therefore fill in the same way. Each mux then schedules its own part of the
// connections, starting at a random place of the sequence (the phases of bpf/abi/schedule.h), so
// that together they fill as one would, except for random variation.
type Basin struct {
	fillings []filling // newest last
}

// filling is one distribution of connections to members.
type filling struct {
	from, to time.Time // to is zero while it is the current one
	total    float64
	shares   []Share
	arrived  float64
}

// Fill is Fill for one interval: `arrived` connections came since the last call, and `arriving` are
// to be shared out before the next, over all muxes; `lag` is the average age of the hosts' reports.
func (b *Basin) Fill(members []Member, arrived float64, arriving int, now time.Time, lag time.Duration) []Share {
	if n := len(b.fillings); n > 0 {
		b.fillings[n-1].to, b.fillings[n-1].arrived = now, arrived
	}
	for len(b.fillings) > 0 && !b.fillings[0].to.After(now.Add(-lag)) {
		b.fillings = b.fillings[1:]
	}
	unseen := map[uint16]float64{}
	for _, f := range b.fillings {
		f.unseen(now.Add(-lag), unseen)
	}
	raised := make([]Member, len(members))
	for i, m := range members {
		m.Load += unseen[m.ID]
		raised[i] = m
	}
	shares := Fill(raised, arriving)
	b.fillings = append(b.fillings, filling{from: now, total: float64(sum(shares)), shares: shares})
	return shares
}

// unseen adds the connections of a filling after a moment.
func (f filling) unseen(since time.Time, to map[uint16]float64) {
	whole, after := f.to.Sub(f.from), min(f.to.Sub(since), f.to.Sub(f.from))
	if whole <= 0 || f.total == 0 {
		return
	}
	each := f.arrived / f.total * float64(after) / float64(whole)
	for _, s := range f.shares {
		if s.Share > 0 {
			to[s.ID] += each * float64(s.Share)
		}
	}
}

// Rate is a smoothed rate of events. The zero Rate has seen none.
type Rate struct {
	perSecond float64
	at        time.Time
}

// rateMemory is the time after which an event counts by 1/e.
const rateMemory = time.Second

// Happened adds the events since the last call, and returns the rate per second.
func (r *Rate) Happened(n float64, now time.Time) float64 {
	passed := now.Sub(r.at)
	switch {
	case r.at.IsZero():
		r.at = now
		return 0
	case passed <= 0:
		return r.perSecond
	}
	share := 1 - math.Exp(-float64(passed)/float64(rateMemory))
	r.perSecond += share * (n/passed.Seconds() - r.perSecond)
	r.at = now
	return r.perSecond
}

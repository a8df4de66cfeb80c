package sched

import (
	"math"
	"time"
)

// Basin is what least-connections has to remember from one sequence to the next: loads are as hosts saw them a while ago, and who was low then was filled
// since. Without it the same members would be filled twice, by one mux, and by all that hear the same. The zero Basin remembers nothing.
//
// Every mux reckons with what all of them give, not with its own part: they hear the same loads, and so fill alike. Of the connections that it shares out each mux
// then gives its own part, from anywhere in the sequence on (the phases of bpf/abi/schedule.h), so that together they fill as one would, but for chance.
type Basin struct {
	fillings []filling // the newest last
}

// filling is what members were to get.
type filling struct {
	from, to time.Time // to is zero while it lasts
	total    float64
	shares   []Share
	arrived  float64
}

// Fill is Fill for a moment: `arrived` connections came since the last call, and `arriving` are to be shared out before the next, over all muxes; hosts told what
// they saw `lag` ago on average.
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

// unseen adds what a filling gave after a moment.
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

// Rate is how many of something happen at a time, smoothed. The zero Rate has seen nothing.
type Rate struct {
	perSecond float64
	at        time.Time
}

// rateMemory is the time after which what happened counts by 1/e.
const rateMemory = time.Second

// Happened takes in what happened since the last call, and returns the rate per second.
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

package snat

import "time"

// Counts holds counters since an allocator was opened.
type Counts struct {
	// Asks counts all requests; Repeated those of DIPs with a pending request.
	Asks, Repeated uint64
	// Grants counts successful requests, Granted their ranges, Freed the ranges that were returned
	// or taken.
	Grants, Granted, Freed uint64
	// Refused counts refused requests by reason.
	Refused [len(reasons)]uint64
	// Silent counts how often a mux lost its eligibility.
	Silent uint64
}

// Add adds the counts of another allocator.
func (c *Counts) Add(o Counts) {
	c.Asks, c.Repeated, c.Grants, c.Granted, c.Freed = c.Asks+o.Asks, c.Repeated+o.Repeated, c.Grants+o.Grants, c.Granted+o.Granted, c.Freed+o.Freed
	for i, n := range o.Refused {
		c.Refused[i] += n
	}
	c.Silent += o.Silent
}

// Reasons returns the reasons of refusals.
func Reasons() []Reason { return []Reason{ReasonExhausted, ReasonDIPLimit, ReasonTenantLimit} }

// Counts returns the counters.
func (d *Desk) Counts() Counts {
	c := d.counts
	c.Silent = d.silences
	return c
}

// Pending returns the number of waiting requests: queued for their turn; telling, stored and
// waiting for muxes.
func (d *Desk) Pending() (queued, telling int) {
	for _, list := range [2][]*tenant{d.ready, d.paced} {
		for _, t := range list {
			queued += len(t.asks)
		}
	}
	queued += len(d.parked)
	for _, q := range d.telling.queue {
		telling += len(q.answers)
	}
	return queued, telling
}

// Usage is the use of a VIP's ranges.
type Usage struct {
	VIP                   VIP
	Tenant                string
	Leased, Free, Resting int
}

// Usage returns that of every VIP that has SNAT, in no order.
func (d *Desk) Usage(now time.Time) []Usage {
	out := make([]Usage, 0, len(d.vips))
	for name, v := range d.vips {
		v.block.Tick(now)
		out = append(out, Usage{VIP: name, Tenant: v.tenant.name, Leased: v.block.Leased(), Free: v.block.Free(), Resting: v.block.Resting()})
	}
	return out
}

package snat

import "time"

// Counts are how many of what there were since a desk was opened.
type Counts struct {
	// Asks are all that were heard; Repeated those of DIPs whose ask was under way.
	Asks, Repeated uint64
	// Grants are asks that got ranges, Granted how many ranges they got, Freed how many were given back or taken.
	Grants, Granted, Freed uint64
	// Refused asks, by reason.
	Refused [len(reasons)]uint64
	// Silent is how often a mux lost its eligibility.
	Silent uint64
}

// Add adds the counts of another desk.
func (c *Counts) Add(o Counts) {
	c.Asks, c.Repeated, c.Grants, c.Granted, c.Freed = c.Asks+o.Asks, c.Repeated+o.Repeated, c.Grants+o.Grants, c.Granted+o.Granted, c.Freed+o.Freed
	for i, n := range o.Refused {
		c.Refused[i] += n
	}
	c.Silent += o.Silent
}

// Reasons are why an ask may be refused.
func Reasons() []Reason { return []Reason{ReasonExhausted, ReasonDIPLimit, ReasonTenantLimit} }

// Counts are how many of what there were.
func (d *Desk) Counts() Counts {
	c := d.counts
	c.Silent = d.silences
	return c
}

// Pending is how many asks wait: queued for their tenant's turn; telling, stored and waiting for muxes.
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

// Usage is how full a VIP is.
type Usage struct {
	VIP                   VIP
	Tenant                string
	Leased, Free, Resting int
}

// Usage of every VIP that has SNAT, in no order.
func (d *Desk) Usage(now time.Time) []Usage {
	out := make([]Usage, 0, len(d.vips))
	for name, v := range d.vips {
		v.block.Tick(now)
		out = append(out, Usage{VIP: name, Tenant: v.tenant.name, Leased: v.block.Leased(), Free: v.block.Free(), Resting: v.block.Resting()})
	}
	return out
}

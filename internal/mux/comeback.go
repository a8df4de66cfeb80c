package mux

import (
	"net/netip"
	"time"
)

// comebackWait is the longest a VIP is held back.
const comebackWait = 5 * time.Second

// comeback holds a VIP back that becomes servable, until every member has been asked, and when it becomes so again, until
// every member that was alive before has been asked again: a mux that announced it with the first member that answers would
// send flows of the others, which other muxes carry, to the wrong server. It has no lock and no clock.
type comeback struct {
	// offered VIPs were let through last time; held ones wait since then.
	offered map[netip.Addr]bool
	held    map[netip.Addr]time.Time
}

// filter lets through what may be announced of the served VIPs.
func (c *comeback) filter(now time.Time, served, unsettled map[netip.Addr]bool) map[netip.Addr]bool {
	out, held := make(map[netip.Addr]bool, len(served)), map[netip.Addr]time.Time{}
	for vip := range served {
		since, waits := c.held[vip]
		if !waits {
			since = now
		}
		if c.offered[vip] || !unsettled[vip] || now.Sub(since) >= comebackWait {
			out[vip] = true
			continue
		}
		held[vip] = since
	}
	c.offered, c.held = out, held
	return out
}

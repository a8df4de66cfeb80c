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
	// offered VIPs may be announced; held ones wait since then.
	offered map[netip.Addr]bool
	held    map[netip.Addr]time.Time
}

// judge decides whether a VIP may be announced, and tells whether that is news. Servers that hold ports of it need it as well as
// clients do; it waits for its members all the same, because routers send clients along.
func (c *comeback) judge(now time.Time, vip netip.Addr, v vipHealth) (news bool) {
	was := c.offered[vip]
	since, waits := c.held[vip]
	if !waits {
		since = now
	}
	switch {
	case !v.served && !v.outbound:
		delete(c.held, vip)
		delete(c.offered, vip)
		return was
	case was || !v.unsettled || now.Sub(since) >= comebackWait:
		delete(c.held, vip)
		c.offered[vip] = true
		return !was
	case !waits:
		c.held[vip] = since
	}
	return false
}

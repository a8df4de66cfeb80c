package mux

import (
	"net/netip"
	"time"
)

// comebackWait is the longest time that a VIP is held down.
const comebackWait = 5 * time.Second

// comeback is the advertise hold-down. It holds back a VIP that becomes usable for the first time
// until every member was probed, and one that becomes usable again until every member that was
// alive before was probed again. A mux that announced the VIP with the first member that answers
// would send flows of other members, which other muxes carry, to the wrong server. It has no lock
// and no clock.
type comeback struct {
	// offered VIPs may be announced; held ones wait since the given time.
	offered map[netip.Addr]bool
	held    map[netip.Addr]time.Time
}

// judge decides whether a VIP may be announced and reports whether the decision changed. A VIP that
// only servers with leased ports need waits for its members all the same, because its route
// attracts clients, too.
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

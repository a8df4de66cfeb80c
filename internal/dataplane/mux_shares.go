package dataplane

import (
	"math"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// Member words of a block whose marks are of sessions that wait for trust, and of those that are trusted (enum share_mark). The program reads the first of
// each four words for the flow table.
const (
	shareWaiting  = 1
	shareSessions = 2
)

// shareOf returns the most elements that each holder may have so that all together have at most room (max-min fairness): who has
// fewer keeps them, the others have equally many. MaxUint64: together they have no more than room.
func shareOf(held []uint64, room uint64) uint64 {
	held = slices.Sorted(slices.Values(held))
	for i, n := range held {
		each := room / uint64(len(held)-i)
		if n > each {
			return max(each, 1)
		}
		room -= n
	}
	return math.MaxUint64
}

// overShare returns the VIPs that hold more than their share of a table while all together hold more than room. A VIP that shares the table
// with no other is never over its share.
func overShare(table string, held map[lb.EndpointKey]uint64, room uint64) (over []Share) {
	if len(held) < 2 {
		return nil
	}
	counts := make([]uint64, 0, len(held))
	for _, n := range held {
		counts = append(counts, n)
	}
	share := shareOf(counts, room)
	for vip, n := range held {
		if n > share {
			over = append(over, Share{vip, table, n, share})
		}
	}
	slices.SortFunc(over, func(a, b Share) int { return a.VIP.VIP.Compare(b.VIP.VIP) })
	return over
}

// share marks the members of VIPs that hold more than their share: of the flow table, whose entries are counted by index of the endpoint,
// from half of its capacity on, and of sessions of path nat, counted by VIP, from three quarters on: of those that are trusted, and of those that wait
// for trust, which have half of the room.
func (t *muxTables) share(flows []uint64, sessions, waiting map[lb.EndpointKey]uint64, capacity uint64) []Share {
	held, translated, waits := map[lb.EndpointKey]uint64{}, map[lb.EndpointKey]uint64{}, map[lb.EndpointKey]uint64{}
	for key, e := range t.entries {
		nat := e.flags()&muxEndpointFlagENDPOINT_NAT != 0
		if nat {
			translated[vipKey(key)], waits[vipKey(key)] = sessions[vipKey(key)], waiting[vipKey(key)]
		}
		// Endpoints with path nat have entries in the flow table only while they remember clients.
		if flows[e.index] > 0 || !nat && e.flags()&muxEndpointFlagENDPOINT_FLOW != 0 {
			held[vipKey(key)] += flows[e.index]
		}
	}
	room := uint64(t.mem.natRoom) * 3 / 4
	over := slices.Concat(overShare("flows", held, capacity/2), overShare("nat_sessions", translated, room), overShare("nat_untrusted", waits, room/2))
	marked := map[Share]bool{}
	for _, s := range over {
		marked[Share{VIP: s.VIP, Table: s.Table}] = true
	}
	if len(over) > 0 {
		store(&t.mem.config.Over, 1)
	}
	for key, e := range t.entries {
		is := func(table string) bool { return marked[Share{VIP: vipKey(key), Table: table}] }
		e.over, e.overWaiting, e.overSessions = is("flows"), is("nat_untrusted"), is("nat_sessions")
		t.markShare(e.block, e)
		t.markShare(e.moved, e)
	}
	if len(over) == 0 {
		store(&t.mem.config.Over, 0)
	}
	return over
}

// markShare writes the marks of a block of member words of an endpoint, or of none. Former tables have no marks.
func (t *muxTables) markShare(b block, e *muxEntry) {
	if len(t.mem.shareMarks) == 0 {
		return
	}
	for i := b.first; i < b.first+b.words; i++ {
		word, bit := &t.mem.shareMarks[i/64], uint64(1)<<(i%64)
		over := e != nil && e.over
		if e != nil && e.flags()&muxEndpointFlagENDPOINT_NAT != 0 {
			switch i - b.first {
			case shareWaiting:
				over = e.overWaiting
			case shareSessions:
				over = e.overSessions
			}
		}
		if now := load(word); over != (now&bit != 0) {
			store(word, now^bit)
		}
	}
}

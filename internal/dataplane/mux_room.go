package dataplane

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/lb"
)

// Tables of a mux that a plan may be too large for, by their names in TablePressure.
const (
	TableEndpoints   = "endpoints"
	TableMembers     = "members"
	TableBackends    = "backends"
	TableRings       = "rings"
	TableSources     = "sources"
	TableSourceLists = "source_lists"
	TableRanges      = "port_ranges"
	TableCookies     = "cookie_sets"
	TableQUIC        = "quic_endpoints"
	TableNAT         = "nat_sessions"
	TableSNAT        = "snat_vips"
	TableConnections = "connections"
)

// NoRoom is wrapped in the error of Apply and Change where a table is full. The tables are as they were before.
type NoRoom struct {
	// Table is the full one, by its name in TablePressure.
	Table string
	// VIP is the key of the VIP whose entries found no room; zero where the change as a whole did not fit.
	VIP lb.EndpointKey

	words string
}

// Error implements error.
func (e *NoRoom) Error() string { return e.words }

func noRoom(table, format string, args ...any) error {
	return &NoRoom{Table: table, words: fmt.Sprintf(format, args...)}
}

// ofVIP names the VIP of an endpoint in an error about room.
func ofVIP(err error, key lb.EndpointKey) error {
	if full := (*NoRoom)(nil); errors.As(err, &full) && !full.VIP.VIP.IsValid() {
		full.VIP = vipKey(key)
	}
	return err
}

// MuxNeeds computes what VIPs take of tables that hold nothing but them. Tables with a history may need more: blocks of members do not
// shrink, and what a change gives up is free after a grace period only.
type MuxNeeds struct {
	lists map[[32]byte]uint64 // words of source lists by digest
}

// Of returns what a VIP takes with these endpoints, which are all of it; their rings need not be made. sources are the VIP's, nil: every source.
// Needs of connections and of sessions of path nat are 1 for each endpoint that has any.
func (n *MuxNeeds) Of(endpoints []MuxEndpoint, sources *SourceList) (out []fit.Need) {
	if len(endpoints) == 0 {
		return nil
	}
	add := func(table string, units uint64, of any) {
		if units > 0 {
			out = append(out, fit.Need{Table: table, Units: units, Of: of})
		}
	}
	add(TableEndpoints, uint64(len(endpoints))+1, nil)
	var members, rings, quic, nat, tracked uint64
	type sharedKey struct {
		table string
		of    any
	}
	seen := map[sharedKey]bool{}
	share := func(table string, units uint64, of any) {
		if !seen[sharedKey{table, of}] {
			seen[sharedKey{table, of}] = true
			add(table, units, of)
		}
	}
	for i := range endpoints {
		e := &endpoints[i]
		count, choosable := uint64(0), false
		for _, m := range e.Members {
			count, choosable = max(count, uint64(m.ID)+1), choosable || m.Choosable
			share(TableBackends, 1, m.backendKey(e.carrier()))
		}
		members += blockUnits(count, memberBlockMin)
		if choosable {
			rings += blockUnits(uint64(1)<<e.RingCode/slotsPerWord, ringBlockMin) * slotsPerWord
			if e.BackupCode > 0 {
				rings += blockUnits(uint64(1)<<e.BackupCode/slotsPerWord, ringBlockMin) * slotsPerWord
			}
		}
		if e.Cookie != nil {
			share(TableCookies, 1, e.Cookie.record())
		}
		quic, nat, tracked = quic+unitIf(e.QUIC != nil), nat+unitIf(e.NAT), tracked+unitIf(e.Track)
	}
	add(TableMembers, members, nil)
	add(TableRings, rings, nil)
	add(TableQUIC, quic, nil)
	add(TableNAT, nat, nil)
	add(TableConnections, tracked, nil)
	add(TableRanges, rangeUnits(endpoints), nil)
	if sources != nil {
		add(TableSourceLists, 1, sources.Digest)
		add(TableSources, n.words(sources), sources.Digest)
	}
	return out
}

// words is how many words of source lists a list takes.
func (n *MuxNeeds) words(l *SourceList) uint64 {
	if words, known := n.lists[l.Digest]; known {
		return words
	}
	if n.lists == nil {
		n.lists = map[[32]byte]uint64{}
	}
	words := blockUnits(uint64(len(l.packed().words)), sourceBlockMin)
	n.lists[l.Digest] = words
	return words
}

// rangeUnits is how many words of port_ranges the endpoints of a VIP take.
func rangeUnits(endpoints []MuxEndpoint) uint64 {
	ranges := rangesOf(endpoints, func(lb.EndpointKey) uint32 { return 0 })[vipKey(endpoints[0].Key)]
	words, err := portIntervals(ranges)
	if err != nil {
		return 0 // Apply refuses them
	}
	return blockUnits(uint64(len(words)), portBlockMin)
}

// blockUnits is how many units a block of a buddy table has that holds n, none for 0.
func blockUnits(n, least uint64) uint64 {
	if n == 0 {
		return 0
	}
	size := cmp.Or(least, 1)
	for size < n {
		size *= 2
	}
	return size
}

func unitIf(yes bool) uint64 {
	if yes {
		return 1
	}
	return 0
}

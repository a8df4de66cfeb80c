package dataplane

import (
	"fmt"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

// adoptSNAT learns who has ports of a VIP from its slot. What VIPs that are not in the tables had is forgotten.
func (t *muxTables) adoptSNAT(vip lb.EndpointKey, e *muxEntry, record *muxEndpointSlot) error {
	e.ranges.snat = uint32(record.Members >> muxSnatShiftSNAT_BLOCK_SHIFT)
	if e.ranges.snat == 0 {
		return nil
	}
	r := &snatRef{index: e.ranges.snat - 1}
	if !t.snat.indices.reserve(r.index) {
		return fmt.Errorf("SNAT block %d: beyond the table or in use twice", r.index)
	}
	span := t.snat.blocks[r.index].Members
	var ok bool
	if r.members, ok = t.members.reserve(uint32(span), uint32(spanCount(span))); !ok {
		return fmt.Errorf("SNAT block %d: members word %#x: words in use twice", r.index, span)
	}
	r.backends = make([]*backendRef, spanCount(span))
	for i := range r.backends {
		word := t.mem.members[r.members.first+uint32(i)]
		if word&memberPresent == 0 {
			continue
		}
		b, err := t.adoptBackend(uint32(word))
		if err != nil {
			return fmt.Errorf("SNAT member %d: %w", i, err)
		}
		r.backends[i] = b
	}
	t.snat.byVIP[vip] = r
	return nil
}

// formerSNAT is what tables say of the ports of a VIP.
type formerSNAT struct {
	keys  []backendKey
	words *[snat.Ranges]uint16
}

// snatOf reads all of it.
func (t *muxTables) snatOf() map[lb.EndpointKey]formerSNAT {
	out := make(map[lb.EndpointKey]formerSNAT, len(t.snat.byVIP))
	for vip, r := range t.snat.byVIP {
		f := formerSNAT{keys: r.keys(), words: new([snat.Ranges]uint16)}
		t.snat.blocks[r.index].read(f.words)
		out[vip] = f
	}
	return out
}

// takeSNAT begins fresh tables with what former ones say. What has no room is told when leases come.
func (m *Mux) takeSNAT(f *formerTables) {
	for vip, s := range f.snat {
		c, err := m.tables.stageSNAT(vip, s.keys, s.words, false)
		if err != nil {
			m.options.log().Error("the ports of a VIP are not taken over", "vip", vip.VIP, "error", err)
			continue
		}
		c.publish()
	}
}

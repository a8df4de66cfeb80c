package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// vip returns the number of the VIP that a flow counts for (flow_vip of bpf/host/shares.h).
func (r *hostFlowRecord) vip() uint32 {
	if r.Kind == uint8(hostFlowKindFLOW_ALIAS) || r.Kind == uint8(hostFlowKindFLOW_BACK) {
		return r.Dip
	}
	return r.Vip
}

// Shares implements HostTables.
func (h *Host) Shares() (over []Share, pressed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sweep.over, h.sweep.pressed
}

// shareLocked marks the VIPs whose trusted flows, which no other flow displaces, are more than their share of the table: max-min, from three
// quarters of its capacity on. The whole sweep that just ended counted them.
func (h *Host) shareLocked() {
	s, t := &h.sweep, h.flows
	room := uint64(len(t.records)) * 3 / 4
	held := map[lb.EndpointKey]uint64{}
	if s.counts[FlowTrusted] > room {
		add := func(n uint32) { held[t.vipOf(n)] = uint64(s.held[n]) }
		for i := range h.state.plans {
			if h.state.plans[i].Rewrite {
				add(t.binding[h.state.plans[i].index].Vip)
			}
		}
		// VIPs that have left the plan, and those of servers' own connections.
		for n, flows := range s.held {
			if flows > 0 {
				add(uint32(n))
			}
		}
	}
	before := s.over
	s.over = overShare("flows", held, room)
	marked := map[uint32]bool{}
	for _, o := range s.over {
		n := t.addrs.numbers[o.VIP.VIP.As16()]
		marked[n] = true
		t.markShare(n, true)
	}
	for _, o := range before {
		if n := t.addrs.numbers[o.VIP.VIP.As16()]; !marked[n] {
			t.markShare(n, false)
		}
	}
}

// vipOf returns the VIP with this number in flow_addrs.
func (t *flowTable) vipOf(n uint32) lb.EndpointKey {
	return lb.EndpointKey{VIP: netip.AddrFrom16(t.addrs.cells[n]).Unmap()}
}

// markShare writes the mark of a VIP. The sweep alone writes them.
func (t *flowTable) markShare(n uint32, over bool) {
	word, bit := &t.shares[n/64], uint64(1)<<(n%64)
	if over {
		store(word, load(word)|bit)
	} else {
		store(word, load(word)&^bit)
	}
}

package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatView is who has a port of a VIP.
type snatView struct {
	// leased: somebody has it; member is who.
	leased bool
	member memberView
}

// snat implements tableView.
func (v tablesView) snat(vip lb.EndpointKey, port uint16) (view snatView, has bool) {
	slot, ok := v.t.slots.find(vip)
	if !ok {
		return view, false
	}
	at := load(&v.t.mem.slots[slot].Members) >> muxSnatShiftSNAT_BLOCK_SHIFT
	if at == 0 {
		return view, false
	}
	b := &v.t.snat.blocks[at-1]
	place := int(b.word(snat.RangeOf(port)))
	if place == 0 || place > spanCount(b.Members) {
		return view, true
	}
	w := load(&v.t.mem.members[uint32(b.Members)+uint32(place-1)])
	if w&memberPresent == 0 {
		return view, true
	}
	r := &v.t.mem.backends[uint32(w)]
	view.leased = true
	view.member = memberView{
		outer: netip.AddrFrom16(r.OuterDst).Unmap(), mtu: r.Mtu, choosable: true, alive: true,
		resolved: load(&r.Nexthop)>>muxNexthopBitNEXTHOP_VALID_SHIFT != 0,
	}
	return view, true
}

// snat implements tableView: the fake has no leases.
func (fakeView) snat(lb.EndpointKey, uint16) (snatView, bool) { return snatView{}, false }

// outbound is the walk of a packet that no endpoint takes, to a VIP with SNAT: to the server that has the port.
func (t *Trace) outbound(p Packet, s snatView, view tableView) {
	r := snat.RangeOf(p.Port)
	t.step("no endpoint of %s has %s port %d", p.VIP, p.Protocol, p.Port)
	if !s.leased {
		t.Verdict = traceSNATNobody
		t.step("the VIP has SNAT, and no server has its ports %s", r)
		return
	}
	t.SNAT = true
	t.step("ports %s are leased to a server for its own connections", r)
	t.forward(0, s.member)
	hash := ring.TableHash(view.flowKey(), p.VNI, p.Client, p.VIP, uint8(p.Protocol), p.ClientPort, p.Port)
	t.Source = outerSource(view.tunnelSources(), t.Outer.Is4(), hash)
	t.step("encapsulated from %s to %s", t.Source, t.Outer)
}

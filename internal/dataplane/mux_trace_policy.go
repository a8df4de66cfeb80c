package dataplane

import (
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// takes says how well an endpoint fits a packet: 0 not at all, then any protocol, all ports, a range, the very port.
func takes(k lb.EndpointKey, p Packet) int {
	all := k.Port == 0 && k.PortEnd == maxPort
	switch {
	case k.VNI != p.VNI || k.VIP != p.VIP:
		return 0
	case k.Protocol == lb.AnyProtocol:
		return 1
	case k.Protocol != p.Protocol:
		return 0
	case all:
		return 2
	case k.PortEnd != 0 && k.Port <= p.Port && p.Port <= k.PortEnd:
		return 3
	case k.PortEnd == 0 && k.Port == p.Port:
		return 4
	}
	return 0
}

// describeKey says what an endpoint takes.
func describeKey(k lb.EndpointKey) string {
	switch {
	case k.Protocol == lb.AnyProtocol:
		return fmt.Sprintf("of %s for any protocol", k.VIP)
	case k.Port == 0 && k.PortEnd == maxPort:
		return fmt.Sprintf("%s of %s for all ports", k.Protocol, k.VIP)
	case k.PortEnd != 0:
		return fmt.Sprintf("%s %s-%d", k.Protocol, netip.AddrPortFrom(k.VIP, k.Port), k.PortEnd)
	}
	return fmt.Sprintf("%s %s", k.Protocol, netip.AddrPortFrom(k.VIP, k.Port))
}

// refused asks what applies to the whole VIP. Limits are told, not asked: what they let through is a matter of the moment.
func (t *Trace) refused(p Packet, view tableView) bool {
	g, ok := view.guard(lb.EndpointKey{VNI: p.VNI, VIP: p.VIP})
	if !ok {
		return false
	}
	if g.denied != nil && g.denied(p.Client) {
		t.Verdict = traceSourceDenied
		t.step("the service does not take packets from %s", p.Client)
		return true
	}
	if g.denied != nil {
		t.step("the service takes packets from %s", p.Client)
	}
	if g.packets != 0 {
		t.step("the VIP takes %d packets a second here", g.packets)
	}
	if g.flows != 0 {
		t.step("the VIP takes %d new flows a second here", g.flows)
	}
	return false
}

// identify is the hash, ring.FlowHash or ring.TableHash, of what makes the packet's flow.
func (t *Trace) identify(p Packet, e endpointView, k lb.EndpointKey,
	hash func(key ring.Key, vni uint32, src, dst netip.Addr, proto uint8, sport, dport uint16) uint64) uint64 {
	client, protocol, clientPort, port := p.Client, p.Protocol, p.ClientPort, p.Port
	switch {
	case p.Protocol != lb.TCP && p.Protocol != lb.UDP:
		clientPort, port = 0, 0
	case e.onePacket:
		t.step("every datagram is a choice of its own: this is one of many")
	}
	switch {
	case e.source != 0:
		prefix := netip.PrefixFrom(client, e.source).Masked()
		t.step("flows of %s stay together", prefix)
		client, protocol, clientPort, port = prefix.Addr(), k.Protocol, 0, k.Port
	case e.threeTuple:
		t.step("flows of one client and protocol stay together, for the sake of fragments")
		clientPort, port = 0, 0
	}
	return hash(e.key, p.VNI, client, p.VIP, uint8(protocol), clientPort, port)
}

// find looks for the endpoint of a packet as the program does.
func (v tablesView) find(p Packet) (lb.EndpointKey, bool) {
	exact := lb.EndpointKey{VNI: p.VNI, VIP: p.VIP, Protocol: p.Protocol, Port: p.Port}
	ports := p.Protocol == lb.TCP || p.Protocol == lb.UDP
	if _, ok := v.t.slots.find(exact); ok && ports {
		return exact, true
	}
	vip, ok := v.t.slots.find(vipKey(exact))
	if !ok {
		return exact, false
	}
	record := &v.t.mem.slots[vip]
	if ports {
		span := load(&record.Ring)
		words := v.t.mem.portRanges[uint32(span) : int(uint32(span))+spanCount(span)]
		if slot, ok := findInterval(words, p.Protocol, p.Port); ok {
			return v.keyAt(slot), true
		}
	}
	if slot := uint32(load(&record.Members)); slot != 0 {
		return v.keyAt(slot - 1), true
	}
	return exact, false
}

// keyAt is the key of the endpoint at a slot.
func (v tablesView) keyAt(slot uint32) lb.EndpointKey {
	s := &v.t.mem.slots[slot]
	return endpointKeyOf(s.Vip, s.Key)
}

// identity reads what makes the flows of an endpoint.
func (v tablesView) identity(view *endpointView, record *muxEndpointSlot) {
	flags := muxEndpointFlag(load(&record.Policy) >> muxPolicyShiftPOLICY_FLAGS_SHIFT)
	view.onePacket = flags&muxEndpointFlagENDPOINT_ONE_PACKET != 0
	view.threeTuple = flags&muxEndpointFlagENDPOINT_FRAGMENTS_3TUPLE != 0
	extra := load(&record.Extra)
	if flags&muxEndpointFlagENDPOINT_SOURCE == 0 || extra == 0 {
		return
	}
	x := &v.t.mem.extras[extra-1]
	view.source = bits.OnesCount64(x.SourceMaskHi) + bits.OnesCount64(x.SourceMaskLo)
	if k := endpointKeyOf(record.Vip, record.Key); k.VIP.Is4() {
		view.source -= 96
	}
}

// guard reads the guard that the slot of a VIP leads to.
func (v tablesView) guard(vip lb.EndpointKey) (guardView, bool) {
	slot, ok := v.t.slots.find(vip)
	if !ok {
		return guardView{}, false
	}
	extra := load(&v.t.mem.slots[slot].Extra)
	if extra == 0 || v.t.mem.extras[extra-1].Guard == 0 {
		return guardView{}, false
	}
	t := &v.t.guards
	record := &t.records[v.t.mem.extras[extra-1].Guard-1]
	view := guardView{packets: t.rate(load(&record.PacketsInterval)), flows: t.rate(load(&record.FlowsInterval))}
	if list := load(&record.Sources); list != 0 {
		view.denied = func(a netip.Addr) bool { return t.sources.denies(uint32(list-1), a) }
	}
	return view, true
}

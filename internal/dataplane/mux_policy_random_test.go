package dataplane

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

var policyVIPs = []netip.Addr{muxVIP4, muxVIP6, netip.MustParseAddr("203.0.113.20")}

// randomPolicyState has endpoints of all forms, and VIPs with limits and source lists.
func randomPolicyState(r *rand.Rand, limits bool) MuxState {
	s := MuxState{RingKeys: testKeys, TunnelSources: sources}
	for _, vip := range policyVIPs {
		for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
			low := uint16(1 + r.IntN(10))
			for low < 20 && r.IntN(3) != 0 {
				high := low + uint16(1+r.IntN(8))
				s.Endpoints = append(s.Endpoints, ranged(vip, protocol, low, high, threeServers...))
				low = high + 1 + uint16(r.IntN(5))
			}
			for port := range uint16(30) {
				if r.IntN(15) == 0 {
					s.Endpoints = append(s.Endpoints, endpointOf(vip, protocol, port+1, threeServers...))
				}
			}
			if r.IntN(3) == 0 {
				s.Endpoints = append(s.Endpoints, ranged(vip, protocol, 0, maxPort, threeServers...))
			}
		}
		if r.IntN(3) == 0 {
			s.Endpoints = append(s.Endpoints, ranged(vip, lb.AnyProtocol, 0, maxPort, threeServers...))
		}
		v := MuxVIP{VIP: vip, Outbound: r.IntN(3) == 0}
		if r.IntN(3) == 0 { // it has no endpoint, and is there if it is Outbound
			s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e MuxEndpoint) bool { return e.Key.VIP == vip })
		}
		if r.IntN(2) == 0 {
			lists := rand.New(rand.NewPCG(uint64(r.IntN(4)), 1)) // so that some are equal
			v.Sources = randomList(lists, lists.IntN(30))
		}
		if limits {
			v.Limits = lb.Limits{Packets: []uint64{0, 0, 100, 500}[r.IntN(4)], Connections: []uint64{0, 0, 20, 300}[r.IntN(4)]}
		}
		s.VIPs = append(s.VIPs, v)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		switch r.IntN(4) {
		case 0:
			e.SourcePrefix4, e.SourcePrefix6 = uint8(r.IntN(33)), uint8(r.IntN(129))
		case 1:
			e.OnePacket = e.Key.Protocol == lb.UDP
		case 2:
			e.Fragments3Tuple = true
		}
		e.KeySlot = uint8(r.IntN(2))
	}
	r.Shuffle(len(s.Endpoints), func(i, j int) { s.Endpoints[i], s.Endpoints[j] = s.Endpoints[j], s.Endpoints[i] })
	return s
}

// policyPacket is a packet for one of the VIPs, from an address that lists may name.
func policyPacket(r *rand.Rand, s MuxState) wire.Packet {
	vip := policyVIPs[r.IntN(len(policyVIPs))]
	p := tcp4(80)
	if vip.Is6() {
		p = tcp6(80)
	}
	p.Dst = vip
	if lists := slices.DeleteFunc(slices.Clone(s.VIPs), func(v MuxVIP) bool { return v.Sources == nil }); len(lists) > 0 && r.IntN(2) == 0 {
		near := slices.DeleteFunc(edges(lists[r.IntN(len(lists))].Sources), func(a netip.Addr) bool {
			return a.Is4() != vip.Is4() || slices.Contains(policyVIPs, a)
		})
		if len(near) > 0 {
			p.Src = near[r.IntN(len(near))]
		}
	}
	source, port := uint16(r.IntN(3)), uint16(r.IntN(50))
	switch r.IntN(5) {
	case 0:
		p.Payload = wire.Raw{Number: 47, Data: make([]byte, 20)}
	case 1, 2:
		p.Payload = wire.UDP{SrcPort: source, DstPort: port, Data: []byte("query")}
	default:
		p.Payload = wire.TCP{SrcPort: source, DstPort: port, Flags: []uint8{wire.SYN, wire.ACK}[r.IntN(2)]}
	}
	return p
}

// forget lets the model forget the buckets of VIPs that have no guard any more.
func (f policyFixture) forget() {
	for _, vip := range policyVIPs {
		guarded := slices.ContainsFunc(f.model.state.VIPs, func(v MuxVIP) bool {
			served := slices.ContainsFunc(f.model.state.Endpoints, func(e MuxEndpoint) bool { return e.Key.VIP == vip })
			return v.VIP == vip && v.guards() && (served || v.Outbound)
		})
		if !guarded {
			delete(f.model.policy.packets, vip)
			delete(f.model.policy.flows, vip)
		}
	}
}

// TestRandomPolicies goes from state to state, sometimes with another owner of the tables, and compares every packet.
func TestRandomPolicies(t *testing.T) {
	r := seeded(t)
	f := newPolicyFixture(t, randomPolicyState(r, true))
	f.setHops(hopsTo(MuxState{Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 1, threeServers...)}}))
	for range 60 {
		s := randomPolicyState(r, true)
		if r.IntN(2) == 0 {
			f.change(s)
		} else {
			f.apply(s)
		}
		f.forget()
		if r.IntN(4) == 0 {
			f.readopt()
			f.mux.tables.hops.wanted = f.model.hops
		}
		for range 150 {
			p := policyPacket(r, s)
			f.trace(p, f.check(p.Frame()))
			if r.IntN(8) == 0 {
				f.setNow(f.model.policy.now + r.Uint64N(f.mux.tables.guards.hz/10))
			}
		}
	}
	must(t, f.mux.Apply(MuxState{}))
	f.checkEmpty()
}

// TestPolicyOwnersDie: whatever store the owner of the tables was killed at, the next one adopts them, reaches the state
// that it wants, and nothing leaks.
func TestPolicyOwnersDie(t *testing.T) {
	r := seeded(t)
	f := newPolicyFixture(t, randomPolicyState(r, false))
	hops := hopsTo(MuxState{Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 1, threeServers...)}})
	f.setHops(hops)
	for range 150 {
		c, err := f.mux.tables.stage(randomPolicyState(r, false), false)
		must(t, err)
		steps := slices.Concat(c.guards, c.members, c.rings, c.slots, c.ranges, c.gone)
		for _, step := range steps[:r.IntN(len(steps)+1)] {
			step()
		}
		f.readopt()
		f.mux.tables.hops.wanted = hops
		s := randomPolicyState(r, false)
		f.apply(s)
		for range 20 {
			f.check(policyPacket(r, s).Frame())
		}
	}
	must(t, f.mux.Apply(MuxState{}))
	f.checkEmpty()
}

// TestPoliciesWithFlows: ranges, lists, limits, remembered clients and flows together, packet by packet and entry by entry.
func TestPoliciesWithFlows(t *testing.T) {
	f, r := newFlowFixture(t), seeded(t)
	f.setNow(1 << 36) // buckets have 40 bits for jiffies
	f.setHops(hopsTo(MuxState{Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 1, threeServers...)}}))
	for range 60 {
		s := randomPolicyState(r, true)
		stays := map[lb.EndpointKey]bool{}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			e.SourceFor = time.Duration(1+r.IntN(100)) * time.Second
			e.Idle = lb.Idle{Untrusted: time.Duration(1+r.IntN(40)) * time.Second, Trusted: time.Duration(1+r.IntN(300)) * time.Second}
			if r.IntN(2) == 0 {
				e.Affinity = AffinityFlow
			}
			stays[e.Key] = true
		}
		before := f.mux.tables.sweeps
		f.apply(s)
		f.policyFixture.forget()
		if f.mux.tables.sweeps != before {
			f.model.forget()
		}
		f.model.leave(stays)
		for range 300 {
			f.check(policyPacket(r, s).Frame())
			switch r.IntN(60) {
			case 0:
				f.pass(time.Duration(r.IntN(20)) * time.Second)
			case 1, 2, 3, 4, 5:
				f.setNow(f.model.policy.now + r.Uint64N(f.mux.tables.guards.hz/20))
			}
		}
		f.checkFlows()
	}
	if n := f.reasonsNow()["new_flow_limited"]; n == 0 {
		t.Error("no packet met the limit of new flows")
	}
	t.Log(f.reasonsNow())
}

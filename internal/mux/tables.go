package mux

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// RingBuilder makes an endpoint's ring: 1<<code member ids, nil when no member has weight. It depends on nothing but
// its arguments, so that all muxes agree.
type RingBuilder func(code uint8, members []plan.Member) []uint16

// rings remembers finished rings: an endpoint's ring is made again only when its generation changed.
type rings struct {
	build RingBuilder
	made  map[lb.EndpointKey]madeRing
}

type madeRing struct {
	generation int64
	code       uint8
	slots      []uint16
}

func (r *rings) get(e plan.Endpoint) []uint16 {
	have, ok := r.made[e.Key]
	if !ok || have.generation != e.Generation || have.code != e.RingCode {
		have = madeRing{e.Generation, e.RingCode, r.build(e.RingCode, e.Members)}
		r.made[e.Key] = have
	}
	return have.slots
}

// prune forgets rings of endpoints that are not in the plan.
func (r *rings) prune(endpoints []plan.Endpoint) {
	keep := make(map[lb.EndpointKey]bool, len(endpoints))
	for _, e := range endpoints {
		keep[e.Key] = true
	}
	for k := range r.made {
		if !keep[k] {
			delete(r.made, k)
		}
	}
}

// keySlots is the number of live ring keys the data plane has room for.
const keySlots = 2

// wantedTables is the data plane's wanted state under a plan.
func wantedTables(p plan.Plan, rings *rings, alive func(lb.EndpointKey, plan.Member) bool, mtu func(netip.Addr) uint32) dataplane.MuxState {
	out := dataplane.MuxState{TunnelSources: p.TunnelSources, RingKeys: map[uint8][16]byte{}}
	for _, k := range p.RingKeys {
		out.RingKeys[uint8(k.ID%keySlots)] = k.Key
	}
	for _, e := range p.Endpoints {
		me := dataplane.MuxEndpoint{
			Key: e.Key, Generation: e.Generation, KeySlot: uint8(e.KeyID % keySlots),
			RingCode: e.RingCode, Ring: rings.get(e),
		}
		for _, m := range e.Members {
			me.Members = append(me.Members, dataplane.MuxMember{
				ID: m.ID, Outer: m.Outer, MTU: mtu(m.Outer), Choosable: m.Weight > 0, Alive: alive(e.Key, m),
			})
		}
		out.Endpoints = append(out.Endpoints, me)
	}
	return out
}

// pathMTU is the largest outer packet towards a destination: the plan's, or less where the kernel knows of less.
func pathMTU(planned uint32, hop netdev.NextHop) uint32 {
	if hop.MTU > 0 && (planned == 0 || uint32(hop.MTU) < planned) {
		return uint32(hop.MTU)
	}
	return planned
}

// nextHops is the data plane's form of what the kernel knows; unresolved ones are zero.
func nextHops(hops map[netip.Addr]netdev.NextHop) map[netip.Addr]dataplane.NextHop {
	out := make(map[netip.Addr]dataplane.NextHop, len(hops))
	for a, h := range hops {
		if h.Resolved {
			out[a] = dataplane.NextHop{MAC: h.MAC, Ifindex: h.Ifindex}
		} else {
			out[a] = dataplane.NextHop{}
		}
	}
	return out
}

// outers are the tunnel destinations of a plan.
func outers(p plan.Plan) []netip.Addr {
	var out []netip.Addr
	for _, e := range p.Endpoints {
		for _, m := range e.Members {
			out = append(out, m.Outer)
		}
	}
	return out
}

// vips are the addresses of a plan's endpoints.
func vips(p plan.Plan) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, e := range p.Endpoints {
		out[e.Key.VIP] = true
	}
	return out
}

// BuildRing is the RingBuilder that every mux uses.
func BuildRing(code uint8, members []plan.Member) []uint16 {
	in := make([]ring.Member, len(members))
	for i, m := range members {
		in[i] = ring.Member{ID: m.ID, DIP: m.DIP, Port: m.Port, Weight: m.Weight}
	}
	return ring.Build(code, in)
}

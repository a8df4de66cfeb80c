package mux

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// keySlots is the number of live ring keys for which the data plane has room.
const keySlots = 2

// present is the agent's state that is not in the plan's endpoints.
type present struct {
	rings    *rings
	sources  sourceLists
	bit      func(lb.EndpointKey, plan.Member) bool
	decision func(lb.EndpointKey) health.Decision
	mtu      func(outer netip.Addr) uint32
	// cids are the live connection id keys of all VIPs, sorted by VIP.
	cids []plan.CIDKeys
	// cookies are the cookie keys of all VIPs, likewise.
	cookies []plan.CookieKeys
}

// wantedTables returns the data plane's wanted state under a plan whose endpoints now.rings has
// prepared.
func wantedTables(p plan.Plan, now present) dataplane.MuxState {
	out := dataplane.MuxState{TunnelSources: p.TunnelSources, RingKeys: map[uint8][16]byte{}}
	for _, k := range p.RingKeys {
		out.RingKeys[uint8(k.ID%keySlots)] = k.Key
	}
	out.Endpoints = make([]dataplane.MuxEndpoint, 0, len(p.Endpoints))
	for i, e := range p.Endpoints {
		out.Endpoints = append(out.Endpoints, wantedEndpoint(e, now.rings.next[i], now))
	}
	served := vips(p)
	now.sources.each(p, func(v dataplane.MuxVIP) {
		if served[v.VIP] {
			out.VIPs = append(out.VIPs, v)
		}
	})
	return out
}

// wantedChange returns the data plane's wanted state of some VIPs, whose endpoints now.rings has
// prepared.
func wantedChange(vips []dataplane.MuxVIP, endpoints []plan.Endpoint, now present) dataplane.MuxChange {
	out := dataplane.MuxChange{VIPs: vips, Endpoints: make([]dataplane.MuxEndpoint, 0, len(endpoints))}
	for i, e := range endpoints {
		out.Endpoints = append(out.Endpoints, wantedEndpoint(e, now.rings.next[i], now))
	}
	return out
}

// wantedEndpoint returns the data plane's form of one endpoint.
func wantedEndpoint(e plan.Endpoint, r nextRings, now present) dataplane.MuxEndpoint {
	out := dataplane.MuxEndpoint{
		Key: e.Key, Generation: e.Generation, KeySlot: uint8(e.KeyID % keySlots), RingTweak: e.RingTweak, RingCode: e.RingCode,
		OnePacket: e.OnePacket, Idle: e.Idle, Fragments3Tuple: e.Fragments == lb.Fragments3Tuple,
	}
	out.Ring, out.BackupRing, out.KeepRings = r.main, r.backup, r.kept
	if hasBackups(e) {
		out.BackupCode, out.UseBackup = e.RingCode, now.decision(e.Key).Backup
	}
	if e.Affinity != lb.AffinityHash {
		out.Affinity = dataplane.AffinityFlow
	}
	out.QUIC, out.Cookie = wantedQUIC(e, plan.CIDsOf(now.cids, e.Key)), wantedCookie(e, plan.CookiesOf(now.cookies, e.Key))
	if out.QUIC != nil || out.Cookie != nil {
		out.Affinity = dataplane.AffinityCookie
	}
	out.NAT, out.FlowsFirst, out.KeepDead = e.NAT, e.FlowsFirst, e.KeepDead
	// Without keys, which arrive with the plan or a moment later, no packet carries a readable
	// cookie.
	out.Track = e.Track && (out.Cookie != nil || out.QUIC != nil)
	out.Scheduler = scheduleKind(&e)
	if e.Encap == lb.EncapGUE {
		out.Encap = dataplane.EncapGUE
	}
	if e.Source != nil {
		out.SourcePrefix4, out.SourcePrefix6, out.SourceFor = e.Source.Prefix4, e.Source.Prefix6, e.Source.For
	}
	out.Members = make([]dataplane.MuxMember, 0, len(e.Members))
	for _, m := range e.Members {
		w := dataplane.MuxMember{ID: m.ID, Outer: m.Outer, MTU: now.mtu(m.Outer), Choosable: m.Weight > 0, Alive: now.bit(e.Key, m)}
		if e.NAT {
			w.Port = m.Port
		}
		out.Members = append(out.Members, w)
	}
	return out
}

// pathMTU returns the largest outer packet towards a destination: the plan's MTU, or the kernel's
// if that is smaller.
func pathMTU(planned uint32, hop netdev.NextHop) uint32 {
	if hop.MTU > 0 && (planned == 0 || uint32(hop.MTU) < planned) {
		return uint32(hop.MTU)
	}
	return planned
}

// nextHops returns the data plane's form of next hops; unresolved ones are zero.
func nextHops(hops map[netip.Addr]netdev.NextHop) map[netip.Addr]dataplane.NextHop {
	out := make(map[netip.Addr]dataplane.NextHop, len(hops))
	for a, h := range hops {
		if h.Resolved {
			out[a] = dataplane.NextHop{MAC: h.MAC, Ifindex: h.Ifindex, Tag: h.Tag}
		} else {
			out[a] = dataplane.NextHop{}
		}
	}
	return out
}

// vips returns the VIPs that a mux serves under a plan, including those without endpoints.
func vips(p plan.Plan) map[netip.Addr]bool {
	out := p.OutboundVIPs()
	if out == nil {
		out = map[netip.Addr]bool{}
	}
	for _, e := range p.Endpoints {
		out[e.Key.VIP] = true
	}
	return out
}

package mux

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// keySlots is the number of live ring keys the data plane has room for.
const keySlots = 2

// sourceLists remembers digests by plan item, so that a list of 100,000 prefixes is read once.
type sourceLists map[string]*dataplane.SourceList

// get is the data plane's form of an item's sources, nil when they let everybody through.
func (l sourceLists) get(item string, s lb.Sources) *dataplane.SourceList {
	if len(s.Allow)+len(s.Deny) == 0 {
		delete(l, item)
		return nil
	}
	have := l[item]
	if have == nil || !slices.Equal(have.Allow, s.Allow) || !slices.Equal(have.Deny, s.Deny) {
		have = &dataplane.SourceList{Digest: digest(s), Allow: s.Allow, Deny: s.Deny}
		l[item] = have
	}
	return have
}

// prune forgets the lists that are not in the plan.
func (l sourceLists) prune(p plan.Plan) {
	in := make(map[string]bool, len(p.Services)+len(p.Sources))
	for _, s := range p.Services {
		in[plan.ServiceItem(s.Name)] = true
	}
	for _, s := range p.Sources {
		in[plan.SourcesItem(s.Policy)] = true
	}
	maps.DeleteFunc(l, func(item string, _ *dataplane.SourceList) bool { return !in[item] })
}

// digest is the SHA-256 of the two lists, each with its length before it, 17 bytes a prefix.
func digest(s lb.Sources) (sum [32]byte) {
	h := sha256.New()
	for _, list := range [][]netip.Prefix{s.Allow, s.Deny} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(list)))
		h.Write(length[:])
		for _, p := range list {
			a := p.Addr().As16()
			bits := p.Bits()
			if p.Addr().Is4() {
				bits += 96
			}
			h.Write(append(a[:], byte(bits)))
		}
	}
	h.Sum(sum[:0])
	return sum
}

// present is what the agent knows beside the plan.
type present struct {
	rings    *rings
	sources  sourceLists
	bit      func(lb.EndpointKey, plan.Member) bool
	decision func(lb.EndpointKey) health.Decision
	mtu      func(outer netip.Addr) uint32
}

// wantedTables is the data plane's wanted state under a plan whose endpoints now.rings has prepared.
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
	lists := make(map[string]*dataplane.SourceList, len(p.Sources))
	for _, s := range p.Sources {
		lists[s.Policy] = now.sources.get(plan.SourcesItem(s.Policy), s.Sources)
	}
	for _, s := range p.Services {
		limits, sources := s.Limits, lists[s.SourcesOf]
		if s.SourcesOf == "" {
			sources = now.sources.get(plan.ServiceItem(s.Name), s.Sources)
		}
		if limits.Ping == 0 {
			limits.Ping = lb.DefaultPing
		}
		for _, vip := range s.VIPs {
			// Other VIPs of the service are on other muxes.
			if served[vip] {
				out.VIPs = append(out.VIPs, dataplane.MuxVIP{VIP: vip, Limits: limits, Sources: sources})
			}
		}
	}
	return out
}

// wantedEndpoint is the data plane's form of one endpoint.
func wantedEndpoint(e plan.Endpoint, r nextRings, now present) dataplane.MuxEndpoint {
	out := dataplane.MuxEndpoint{
		Key: e.Key, Generation: e.Generation, KeySlot: uint8(e.KeyID % keySlots), RingCode: e.RingCode,
		OnePacket: e.OnePacket, Idle: e.Idle, Fragments3Tuple: e.Fragments == lb.Fragments3Tuple,
	}
	out.Ring, out.BackupRing, out.KeepRings = r.main, r.backup, r.kept
	if hasBackups(e) {
		out.BackupCode, out.UseBackup = e.RingCode, now.decision(e.Key).Backup
	}
	if e.Affinity == lb.AffinityFlow {
		out.Affinity = dataplane.AffinityFlow
	}
	if e.Encap == lb.EncapGUE {
		out.Encap = dataplane.EncapGUE
	}
	if e.Source != nil {
		out.SourcePrefix4, out.SourcePrefix6, out.SourceFor = e.Source.Prefix4, e.Source.Prefix6, e.Source.For
	}
	out.Members = make([]dataplane.MuxMember, 0, len(e.Members))
	for _, m := range e.Members {
		out.Members = append(out.Members, dataplane.MuxMember{
			ID: m.ID, Outer: m.Outer, MTU: now.mtu(m.Outer), Choosable: m.Weight > 0, Alive: now.bit(e.Key, m),
		})
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
			out[a] = dataplane.NextHop{MAC: h.MAC, Ifindex: h.Ifindex, Tag: h.Tag}
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

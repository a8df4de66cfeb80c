package dataplane

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// fuzzVIPs are the addresses that states may have as VIPs. The last ones are far from the others.
var fuzzVIPs = []netip.Addr{
	muxVIP4, netip.MustParseAddr("203.0.113.20"), muxVIP6, netip.MustParseAddr("2001:db8:f::20"),
	netip.MustParseAddr("9.1.2.3"), netip.MustParseAddr("fd00::1"),
}

// fuzzOtherSelf is the address of another interface of the mux.
var fuzzOtherSelf = [6]byte{2, 0, 0, 0, 0xbb, 9}

// fuzzKeys are what endpoints of a VIP may be for.
var fuzzKeys = []lb.EndpointKey{
	{Protocol: lb.TCP, Port: 80}, {Protocol: lb.TCP, Port: 443}, {Protocol: lb.TCP, Port: 8080}, {Protocol: lb.UDP, Port: 53},
	{Protocol: lb.UDP, Port: 443}, {Protocol: lb.UDP, Port: 5000}, {Protocol: lb.TCP, Port: 70, PortEnd: 90},
	{Protocol: lb.TCP, Port: 1000, PortEnd: 1003}, {Protocol: lb.UDP, Port: 50, PortEnd: 60}, {Protocol: lb.UDP, Port: 61, PortEnd: 65535},
	{Protocol: lb.TCP, PortEnd: 65535}, {Protocol: lb.UDP, PortEnd: 65535}, {Protocol: lb.AnyProtocol, PortEnd: 65535},
	{Protocol: lb.TCP, Port: 65535}, {Protocol: lb.UDP, Port: 0},
}

// one says yes once in n times.
func (f *fuzz) one(n int) bool { return f.r.IntN(n) == 0 }

// pick is one of some.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// fuzzOuter is an address of a server.
func fuzzOuter(i int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 0x20, 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{10, 20, 1, byte(i)})
}

func (f *fuzz) randomState() MuxState {
	s := MuxState{RingKeys: testKeys, TunnelSources: sources}
	for _, vip := range fuzzVIPs {
		if f.one(5) {
			continue
		}
		for _, key := range fuzzKeys {
			if key.VIP = vip; f.one(3) {
				s.Endpoints = append(s.Endpoints, f.newEndpoint(key))
			}
		}
		if !f.one(3) {
			s.VIPs = append(s.VIPs, f.newVIP(vip))
		}
	}
	f.r.Shuffle(len(s.Endpoints), func(i, j int) { s.Endpoints[i], s.Endpoints[j] = s.Endpoints[j], s.Endpoints[i] })
	return f.small(s)
}

// small leaves endpoints out that have no room in the tables.
func (f *fuzz) small(s MuxState) MuxState {
	s.Endpoints = s.Endpoints[:min(len(s.Endpoints), int(fuzzLimits.Endpoints)-len(fuzzVIPs)-2)]
	return s
}

func (f *fuzz) newVIP(vip netip.Addr) MuxVIP {
	v := MuxVIP{VIP: vip}
	if f.one(3) {
		lists := rand.New(rand.NewPCG(f.r.Uint64N(5), 1)) // so that some are equal
		v.Sources = randomList(lists, lists.IntN(30))
		for range lists.IntN(4) {
			p, _ := fuzzClient(lists.IntN(fuzzClients), lists.IntN(2) == 0).Prefix(lists.IntN(33))
			if lists.IntN(3) == 0 {
				v.Sources.Deny = append(v.Sources.Deny, p)
			} else {
				v.Sources.Allow = append(v.Sources.Allow, p)
			}
		}
	}
	v.Limits = lb.Limits{
		Packets: pick[uint64](f.r, 0, 0, 200, 5000, 100_000), Connections: pick[uint64](f.r, 0, 0, 0, 10, 300, 5000), Ping: pick[uint64](f.r, 0, 0, 1, 20, 500),
	}
	return v
}

func (f *fuzz) newEndpoint(key lb.EndpointKey) MuxEndpoint {
	e := MuxEndpoint{Key: key, Encap: Encap(f.r.IntN(2)), KeySlot: uint8(f.r.IntN(2)), RingTweak: pick(f.r, 0, 0, 1, f.r.Uint64())}
	f.newIdentity(&e)
	f.newMembers(&e, pick(f.r, 0, 1, 2, 3, 3, 4, 5, 9))
	f.newRings(&e)
	return e
}

// newIdentity gives an endpoint what it knows flows by.
func (f *fuzz) newIdentity(e *MuxEndpoint) {
	e.Affinity, e.OnePacket, e.SourcePrefix4, e.SourcePrefix6, e.Fragments3Tuple = AffinityFlow, false, 0, 0, f.one(5)
	if f.one(4) {
		e.Affinity = AffinityHash
	}
	switch {
	case f.one(4):
		e.SourcePrefix4, e.SourcePrefix6 = uint8(pick(f.r, 0, 8, 24, 31, 32)), uint8(pick(f.r, 0, 48, 64, 127, 128))
	case e.Key.Protocol == lb.UDP && f.one(4):
		e.OnePacket = true
	}
	e.Scheduler = ScheduleRing
	if e.Affinity == AffinityFlow && !e.OnePacket && f.sr.IntN(2) == 0 {
		e.Scheduler = ScheduleKind(1 + f.sr.IntN(3))
	}
	f.newCookies(e)
	f.newQUIC(e)
	e.FlowsFirst, e.KeepDead = f.sr.IntN(3) == 0, f.sr.IntN(3) == 0
	e.SourceFor = time.Duration(f.r.IntN(400)) * time.Second
	e.Idle = lb.Idle{Untrusted: time.Duration(f.r.IntN(40)) * time.Second, Trusted: time.Duration(f.r.IntN(300)) * time.Second}
}

// newMembers adds members to an endpoint: their outer destinations differ, but with GUE.
func (f *fuzz) newMembers(e *MuxEndpoint, n int) {
	e.Members = slices.Clone(e.Members)
	for tries := 0; n > 0 && tries < 100; tries++ {
		m := MuxMember{
			ID: uint16(f.r.IntN(len(e.Members) + 3)), Outer: fuzzOuter(f.r.IntN(24), f.one(2)), MTU: uint32(pick(f.r, 1500, 1500, 1500, 9000, 0, 600, 1300, 1400)),
			Choosable: !f.one(6), Alive: !f.one(6),
		}
		if e.Encap == EncapGUE {
			m.Outer = fuzzOuter(f.r.IntN(3), f.one(2))
		}
		if f.one(200) {
			m.ID += uint16(f.r.IntN(60))
		}
		if slices.ContainsFunc(e.Members, func(o MuxMember) bool { return o.ID == m.ID || o.Outer == m.Outer && e.Encap != EncapGUE }) {
			continue
		}
		e.Members = append(e.Members, m)
		n--
	}
}

// newRings makes the rings of an endpoint, of its members that have weight, or of any.
func (f *fuzz) newRings(e *MuxEndpoint) {
	any, some := f.one(8), f.r.Uint64()
	build := func(code uint8, of func(m MuxMember) bool) []uint16 {
		var members []ring.Member
		for _, m := range e.Members {
			if of(m) && (any || m.Choosable) {
				members = append(members, ring.Member{ID: m.ID, DIP: m.Outer, Port: uint16(m.ID), Weight: uint16(1 + m.ID%3)})
			}
		}
		return ring.Build(code, members)
	}
	all := func(MuxMember) bool { return true }
	e.RingCode, e.BackupCode, e.BackupRing = uint8(6+f.r.IntN(3)), 0, nil
	if !f.one(3) {
		e.Ring = build(e.RingCode, all)
		return
	}
	e.Ring = build(e.RingCode, func(m MuxMember) bool { return some>>(m.ID%64)&1 == 0 })
	e.BackupCode, e.UseBackup = uint8(6+f.r.IntN(2)), f.one(2)
	e.BackupRing = build(e.BackupCode, all)
}

// mutated is a state one or a few steps from s.
func (f *fuzz) mutated(s MuxState) MuxState {
	s.Endpoints, s.VIPs = slices.Clone(s.Endpoints), slices.Clone(s.VIPs)
	switch f.r.IntN(12) {
	case 0:
		return f.randomState()
	case 1:
		s.TunnelSources = []netip.Prefix{
			netip.PrefixFrom(sources[0].Addr(), pick(f.r, 8, 16, 24, 31, 32)), netip.PrefixFrom(sources[1].Addr(), pick(f.r, 32, 48, 64)),
		}
	case 2:
		var key [16]byte
		for i := range key {
			key[i] = byte(f.r.Uint32())
		}
		s.RingKeys = map[uint8][16]byte{0: s.RingKeys[0], 1: s.RingKeys[1]}
		s.RingKeys[uint8(f.r.IntN(2))] = key
	case 3, 4:
		vip := pick(f.r, fuzzVIPs...)
		s.VIPs = slices.DeleteFunc(s.VIPs, func(v MuxVIP) bool { return v.VIP == vip })
		if !f.one(4) {
			s.VIPs = append(s.VIPs, f.newVIP(vip))
		}
	case 5:
		key := pick(f.r, fuzzKeys...)
		key.VIP = pick(f.r, fuzzVIPs...)
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e MuxEndpoint) bool { return e.Key == key })
		s.Endpoints = append(s.Endpoints, f.newEndpoint(key))
		s = f.small(s)
	case 6:
		if n := len(s.Endpoints); n > 1 {
			i := f.r.IntN(n)
			s.Endpoints = slices.Delete(s.Endpoints, i, i+1)
		}
	default:
		for range 1 + f.r.IntN(3) {
			if n := len(s.Endpoints); n > 0 {
				f.change(&s.Endpoints[f.r.IntN(n)])
			}
		}
	}
	return s
}

// change changes an endpoint.
func (f *fuzz) change(e *MuxEndpoint) {
	e.Members = slices.Clone(e.Members)
	switch n := len(e.Members); f.r.IntN(8) {
	case 0:
		f.newIdentity(e)
	case 1:
		f.newMembers(e, pick(f.r, 1, 2, 5, 12))
	case 2:
		if n > 0 {
			e.Members = slices.Delete(e.Members, 0, 1+f.r.IntN(n))
		}
	case 3:
		e.Encap, e.Members = Encap(f.r.IntN(2)), nil
		f.newMembers(e, n)
	case 4:
		e.KeySlot = uint8(f.r.IntN(2))
	case 5:
		if n > 0 {
			m := &e.Members[f.r.IntN(n)]
			m.MTU = uint32(pick(f.r, 1500, 9000, 0, 600, 1300))
		}
	default:
		for i := range e.Members {
			e.Members[i].Choosable = !f.one(4)
		}
	}
	f.newRings(e)
}

// randomHops gives servers other ways, or none.
func (f *fuzz) randomHops() {
	hops := map[netip.Addr]NextHop{}
	for i := range 24 {
		for _, v6 := range []bool{false, true} {
			if f.one(12) {
				continue
			}
			hop := NextHop{MAC: [6]byte{2, 0, 0, 0, 0xaa, byte(f.r.IntN(3))}, Ifindex: ingress}
			if f.one(5) {
				hop.Ifindex = 7
			}
			if f.one(8) {
				hop.Tag = 0x8100_0123
			}
			hops[fuzzOuter(i, v6)] = hop
		}
	}
	f.setHops(hops)
}

package bench

import (
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/snat"
)

// ringKey is the key of the keyed hash in benchmarks. Any key will do.
var ringKey = [16]byte{0x53, 0x68, 0x75, 0x6e, 0x74, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}

// loopbackIndex is the next hop's device. Encapsulated packets go nowhere, but the program runs its
// normal path.
const loopbackIndex = 1

// benchIdle is the idle time of flows: longer than any case takes.
const benchIdle = time.Hour

// backendAddress returns the outer destination of backend i in a family.
func backendAddress(f benchrun.Family, i int) netip.Addr {
	if f == benchrun.IPv4 {
		return netip.AddrFrom4([4]byte{10, 20, 1, byte(1 + i)})
	}
	a := netip.MustParseAddr("2001:db8:20:1::").As16()
	a[15] = byte(1 + i)
	return netip.AddrFrom16(a)
}

// tables returns the state that a mux's agent would write for the case: every endpoint has
// `members` of the backends, all alive, and a ring of the size that plans give it. Endpoints that
// share their members share their ring's contents.
func (c muxCase) tables() (dataplane.MuxState, map[netip.Addr]dataplane.NextHop) {
	state := dataplane.MuxState{
		RingKeys:      map[uint8][16]byte{0: ringKey},
		TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd53:6875:6e74::/64")},
	}
	hops := map[netip.Addr]dataplane.NextHop{}
	sets := benchBackends / c.members
	weights := make([]uint16, c.members)
	for i := range weights {
		weights[i] = 1
	}
	code := ring.SizeCode(weights, 0)
	members, rings := make([][]dataplane.MuxMember, sets), make([][]uint16, sets)
	for s := range sets {
		var wanted []ring.Member
		for id := range c.members {
			outer := backendAddress(c.traffic.Family, s*c.members+id)
			hops[outer] = dataplane.NextHop{MAC: [6]byte{2, 0, 0, 0, 0, 1}, Ifindex: loopbackIndex}
			wanted = append(wanted, ring.Member{ID: uint16(id), DIP: outer, Port: 8080, Weight: 1})
			members[s] = append(members[s], dataplane.MuxMember{ID: uint16(id), Outer: outer, MTU: 1500, Choosable: true, Alive: true})
		}
		rings[s] = ring.Build(code, wanted)
	}
	affinity := dataplane.AffinityHash
	if c.table > 0 {
		affinity = dataplane.AffinityFlow
	}
	var keys *dataplane.MuxCookie
	if c.cookie() {
		affinity = dataplane.AffinityCookie
		keys = &dataplane.MuxCookie{Keys: [2][16]byte{benchrun.CookieKey}, Live: [2]bool{true, false}, Shuffled: [2]bool{true, false}}
	}
	protocol, ids := lb.TCP, (*dataplane.MuxQUIC)(nil)
	if c.quic() {
		affinity, protocol, ids = dataplane.AffinityCookie, lb.UDP, &c.traffic.CIDs
	}
	for i := range c.traffic.VIPs {
		s := int(i) % sets
		port := uint16(benchrun.Port)
		if c.snat() {
			port++
		}
		state.Endpoints = append(state.Endpoints, dataplane.MuxEndpoint{
			Key:      lb.EndpointKey{VIP: c.traffic.Family.VIP(i), Protocol: protocol, Port: port},
			RingCode: code, Ring: rings[s], Members: members[s],
			Affinity: affinity, Cookie: keys, QUIC: ids, Track: c.tracked(), Idle: lb.Idle{Untrusted: benchIdle, Trusted: benchIdle},
		})
	}
	return state, hops
}

// lease gives the backends the ports of the case's VIPs, as its agent would.
func (c muxCase) lease(mux *benchrun.Mux) error {
	if !c.snat() {
		return nil
	}
	members := make([]dataplane.SNATMember, c.members)
	for i := range members {
		dip := backendAddress(c.traffic.Family, i)
		members[i] = dataplane.SNATMember{DIP: dip, Outer: dip, Encap: lb.EncapIPIP, MTU: 1500}
	}
	words := &[snat.Ranges]uint16{}
	for r := range words {
		words[r] = uint16(1 + r%len(members))
	}
	for i := range c.traffic.VIPs {
		if err := mux.SetSNAT(snat.VIP{Addr: c.traffic.Family.VIP(i)}, members, words); err != nil {
			return err
		}
	}
	return nil
}

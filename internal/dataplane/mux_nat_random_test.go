package dataplane

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/wire"
)

// someFlow is one of few flows, so that the same ones are met again.
func someFlow(r *rand.Rand, flags uint8) wire.Packet {
	from := 1000 + uint16(r.IntN(12))
	if r.IntN(12) == 0 {
		from += uint16(r.IntN(5000))
	}
	p := natPacket(r.IntN(2) == 0, r.IntN(3) == 0, from, flags, optionsOf(r)...)
	p.Padding = r.IntN(4)
	if r.IntN(30) == 0 {
		p.TTL = 1
	}
	return p
}

// optionsOf are timestamps, mostly.
func optionsOf(r *rand.Rand) []byte {
	if r.IntN(4) == 0 {
		return nil
	}
	places := optionPlaces()
	return places[slices.Sorted(maps.Keys(places))[r.IntN(len(places))]]
}

var natFlags = []uint8{wire.SYN, wire.ACK, wire.ACK, wire.ACK | wire.PSH, wire.ACK | wire.FIN, wire.RST, wire.RST | wire.ACK, wire.FIN}

// TestNATAgainstNaiveModel: whatever clients, servers, members, addresses and time do, each packet becomes what the naive model says, byte by byte, and the
// tables hold the model's sessions and ports: so that an address and a port of the mux and a server are one flow's (P7). SHUNT_SEED replays a run.
func TestNATAgainstNaiveModel(t *testing.T) {
	met := map[string]bool{"trusted": false, "reset": false, "both ended": false, "begun anew": false, "a port rests": false, "displaced": false}
	for _, forms := range [][]MuxEndpoint{natServers(), splitServers(CookieSplitR), append(splitServers(CookieSplitZ), natServers()[2:]...)} {
		r := seeded(t)
		f := newNATFixture(t, forms...)
		if len(forms) == 2 {
			f.serve(append(forms, natServers()[2:]...)...)
		}
		var clock uint32 = r.Uint32()
		for step := range 6000 {
			clock += r.Uint32N(3000)
			switch n := r.IntN(100); {
			case n < 45:
				p := someFlow(r, natFlags[r.IntN(len(natFlags))])
				if at, _ := stampOf(p, 0); at >= 0 {
					p = stamped(p, r.Uint32(), f.echoFor(p, r))
				}
				src, dst, protocol, _ := endsOf(p)
				f.in(f.likely(p, natFlow{src, dst, protocol}, false, r))
			case n < 90:
				if p, ok := f.someAnswer(r); ok {
					if at, _ := stampOf(p, 0); at >= 0 {
						p = stamped(p, clock-r.Uint32N(2000), r.Uint32())
					}
					f.out(f.likely(p, f.ports[f.portOf(serverSays(p))], true, r))
				}
			case n < 93:
				e := f.model.state.Endpoints[r.IntN(len(f.model.state.Endpoints))]
				f.setAlive(MemberAlive{e.Key, uint16(r.IntN(3)), r.IntN(3) > 0})
			case n < 95:
				state := f.model.state.Endpoints
				for i := range state {
					state[i].Members = slices.Clone(state[i].Members)
					state[i].Members[r.IntN(3)].Choosable = r.IntN(3) > 0
					if r.IntN(4) == 0 {
						state[i].Members[r.IntN(3)].Port = 8080 + uint16(r.IntN(2))
					}
				}
				state[r.IntN(len(state))].KeepDead = r.IntN(2) == 0
				f.serve(state...)
			case n < 96:
				f.from(someAddresses(r)...)
			default:
				f.at(f.tick + r.Uint64N(60))
				f.sweep()
			}
			if step%500 == 0 {
				f.compareTables()
			}
			for _, s := range f.sessions {
				met["trusted"] = met["trusted"] || s.class() == FlowTrusted
				met["reset"] = met["reset"] || s.wasReset
				met["both ended"] = met["both ended"] || s.fromClient.done && s.fromServer.done
				met["begun anew"] = met["begun anew"] || s.rests
			}
			met["a port rests"] = met["a port rests"] || len(f.resting) > 0
		}
		f.from(natPorts...)
		f.sweep()
		met["displaced"] = met["displaced"] || f.reasonsNow()["nat_displaced"] > 0
	}
	for what, did := range met {
		if !did {
			t.Errorf("%s: never met, in 18,000 steps", what)
		}
	}
}

// someAddresses are few, with few ports, so that they run out.
func someAddresses(r *rand.Rand) (out []NATAddress) {
	for i := range 3 {
		if r.IntN(2) == 0 {
			low := uint16(2000 + r.IntN(3))
			out = append(out, NATAddress{numbered(7000 + i), low, low + uint16(r.IntN(12))})
		}
		if r.IntN(2) == 0 {
			b := natLIP6.As16()
			b[15] = byte(i)
			out = append(out, NATAddress{netip.AddrFrom16(b), 4000, 4000 + uint16(r.IntN(9))})
		}
	}
	return out
}

// echoFor is the echo of a client's segment: mostly of what it could have got.
func (f *natFixture) echoFor(p wire.Packet, r *rand.Rand) uint32 {
	src, dst, protocol, _ := endsOf(p)
	s := f.sessions[natFlow{src, dst, protocol}]
	if s == nil || !s.clock || r.IntN(8) == 0 {
		return r.Uint32() * uint32(r.IntN(2))
	}
	own := s.newest - r.Uint32N(5000)
	return (own&0x80000)<<12 | uint32(s.cookie)<<19 | own&0x7ffff
}

// likely gives a segment numbers that are often right, or nearly.
func (f *natFixture) likely(p wire.Packet, flow natFlow, server bool, r *rand.Rand) wire.Packet {
	l4, ok := p.Payload.(wire.TCP)
	if !ok {
		return p
	}
	l4.Data = l4.Data[:r.IntN(len(l4.Data)+1)]
	l4.Seq, l4.Ack = r.Uint32(), r.Uint32()
	if s := f.sessions[flow]; s != nil && r.IntN(10) > 0 {
		us, them := s.fromClient, s.fromServer
		if server {
			us, them = them, us
		}
		near := func(n, other uint32) uint32 {
			switch r.IntN(6) {
			case 0:
				return other
			case 1:
				return n + r.Uint32N(40) - 20
			}
			return n
		}
		l4.Seq, l4.Ack = near(us.end, us.acked), near(them.end, them.acked)
		if server && l4.Flags&wire.SYN != 0 && r.IntN(3) > 0 {
			l4.Seq = s.isn
		}
	}
	p.Payload = l4
	return p
}

// someAnswer is a packet of the server of a session that there is, or was nearly.
func (f *natFixture) someAnswer(r *rand.Rand) (wire.Packet, bool) {
	if len(f.ports) == 0 {
		return wire.Packet{}, false
	}
	ports := slices.SortedFunc(maps.Keys(f.ports), func(a, b natPortOf) int {
		return slices.Compare([]int{a.lip.Addr().Compare(b.lip.Addr()), int(a.lip.Port()), int(a.protocol), a.server.Compare(b.server)},
			[]int{0, int(b.lip.Port()), int(b.protocol), 0})
	})
	port := ports[r.IntN(len(ports))]
	if r.IntN(20) == 0 {
		port.lip = netip.AddrPortFrom(port.lip.Addr(), port.lip.Port()+1)
	}
	p := natPacket(port.lip.Addr().Is6(), port.protocol == 17, 1, 0)
	p.Src, p.Dst = port.server.Addr(), port.lip.Addr()
	if port.protocol == 17 {
		p.Payload = wire.UDP{SrcPort: port.server.Port(), DstPort: port.lip.Port(), Data: []byte("answer")}
	} else {
		flags := append(natFlags[1:], wire.SYN|wire.ACK)
		p.Payload = wire.TCP{SrcPort: port.server.Port(), DstPort: port.lip.Port(), Flags: flags[r.IntN(len(flags))], Options: optionsOf(r), Data: []byte("answer")}
	}
	return p, true
}

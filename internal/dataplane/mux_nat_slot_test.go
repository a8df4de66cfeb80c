package dataplane

import (
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestNATSlotOfAnother: a session whose endpoint has another slot by now is its endpoint's, and does nothing to the one that has the slot.
func TestNATSlotOfAnother(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		servers := natServers()
		servers[0].Scheduler, servers[1].Scheduler = ScheduleLighter, ScheduleLighter
		other := natEndpoint(muxVIP4, lb.TCP, 90, "10.20.1.11", "10.20.2.11", "10.20.3.11")
		other.Scheduler, other.Idle = ScheduleLighter, lb.Idle{Untrusted: lb.MinIdle, Trusted: lb.MinIdle}
		f := newNATFixture(t, append(servers, other)...)
		_, vip, _, _ := endsOf(natPacket(v6, false, 1000, 0))
		own, its := f.mux.tables.entries[f.endpointFor(vip, 6).Key].slot, f.mux.tables.entries[other.Key].slot
		misplace := func(c *natTalk) muxNatSession {
			t.Helper()
			key := keyOf(c.flow)
			s, ok := f.sessionOf(c.flow)
			if !ok || s.Slot != own {
				t.Fatalf("session %v, slot %d, expected %d", ok, s.Slot, own)
			}
			s.Slot = its
			must(t, f.mux.objects.NatSessions.Put(&key, &s))
			return s
		}
		loads := func(key lb.EndpointKey) (sum uint64) {
			e := f.mux.tables.entries[key]
			for id := range e.members.all() {
				sum += load(&f.mux.memory.memberLoads[e.block.first+uint32(id)])
			}
			return sum
		}
		ended, seen, quiet := f.talk(v6, 1000), f.talk(v6, 1001), f.talk(v6, 1002)
		for _, c := range []*natTalk{ended, seen, quiet} {
			c.shake()
			misplace(c)
		}
		// Not before: the model has no schedulers.
		for _, e := range []lb.EndpointKey{other.Key, f.endpointFor(vip, 6).Key} {
			word := uint64(100)<<muxMemberLoadShiftMEMBER_LOAD_STEP_SHIFT | 1000
			must(t, f.mux.SetSchedules([]Schedule{{
				Endpoint: e, Kind: ScheduleLighter, Sequence: []uint16{0, 1, 2}, Loads: []MemberLoad{{0, word}, {1, word}, {2, word}},
			}}))
		}
		before, ours := loads(other.Key), loads(f.endpointFor(vip, 6).Key)
		ended.says(true, wire.RST, 1, 0, 0)
		if n := loads(other.Key); n != before {
			t.Errorf("the load of another endpoint went from %#x to %#x", before, n)
		}
		seen.says(false, wire.ACK, 1, 1, 10)
		if s, _ := f.sessionOf(seen.flow); s.Slot != own {
			t.Errorf("slot %d after a packet, expected %d", s.Slot, own)
		}
		seen.says(true, wire.RST, 1, 0, 0)
		if n := loads(f.endpointFor(vip, 6).Key); n >= ours {
			t.Errorf("the load of the endpoint went from %#x to %#x when a connection ended", ours, n)
		}
		f.at(f.tick + uint64(f.mux.tables.ticks(natIdle.Untrusted)))
		f.sweep()
		flows, err := f.mux.listFlows(f.endpointFor(vip, 6).Key, 10)
		must(t, err)
		if len(flows) != 3 {
			t.Errorf("%d flows", len(flows))
		}
	})
}

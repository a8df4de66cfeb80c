package dataplane

import (
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// openingServers are three servers by round robin, of cookies or of flows; a flow of which only a SYN was seen has `untrusted`.
func openingServers(t *testing.T, affinity Affinity, untrusted time.Duration) flowFixture {
	e := cookieEndpoint(muxVIP4, 80, "10.20.1.11", "10.20.2.11", "10.20.3.11")
	if e.Affinity = affinity; affinity == AffinityFlow {
		e.Cookie = nil
	}
	e.Scheduler, e.Idle.Untrusted = ScheduleNext, untrusted
	f := newFlowFixture(t, e)
	f.schedule([]uint16{0, 1, 2})
	return f
}

// open sends a SYN with timestamps: with cookies, only such a SYN is for the scheduler.
func (f flowFixture) open(port uint16) uint16 {
	f.t.Helper()
	got := f.check(segment4(port, wire.SYN, usualOptions(0)...).Frame())
	f.checkFlows()
	return got.member.Member
}

// TestOpeningIsForgotten: what a scheduler chose for a SYN of an endpoint with cookies counts for ten seconds after the last SYN, or for idle.untrusted when that is
// less. With affinity flow, where nothing else leads to the server, it counts for idle.untrusted.
func TestOpeningIsForgotten(t *testing.T) {
	for _, c := range []struct {
		name      string
		affinity  Affinity
		untrusted time.Duration
		stays     time.Duration
		ends      time.Duration
	}{
		{"cookie", AffinityCookie, time.Minute, 10 * time.Second, 12 * time.Second},
		{"cookie, short", AffinityCookie, 4 * time.Second, 4 * time.Second, 6 * time.Second},
		{"cookie, long", AffinityCookie, lb.MaxIdle, 10 * time.Second, 12 * time.Second},
		{"flow", AffinityFlow, time.Minute, time.Minute, 63 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := openingServers(t, c.affinity, c.untrusted)
			first := f.open(4000)
			for range 3 {
				f.pass(c.stays)
				if got := f.only(); got.Class != FlowUntrusted || got.Age < c.stays-2*time.Second || got.Age > c.stays+2*time.Second {
					t.Errorf("%v after the SYN: %+v", c.stays, got)
				}
				if got := f.open(4000); got != first {
					t.Fatalf("a SYN repeated after %v goes to member %d, the first went to %d", c.stays, got, first)
				}
				if got := f.only(); got.Age != 0 {
					t.Errorf("a repeated SYN leaves %+v", got)
				}
			}
			f.pass(c.ends)
			flows, err := f.mux.listFlows(f.model.state.Endpoints[0].Key, 10)
			must(t, err)
			if len(flows) > 0 {
				t.Errorf("%v after the SYN: %+v", c.ends, flows)
			}
			if got := f.open(4000); got == first {
				t.Errorf("after %v a SYN still goes to member %d", c.ends, first)
			}
		})
	}
}

// TestOpenedStays: a flow that went on keeps its member: by its cookie, whether the table has it or not, and without one by the table, for the times of trusted and closing
// flows.
func TestOpenedStays(t *testing.T) {
	f := openingServers(t, AffinityCookie, time.Minute)
	chosen := f.open(4000)
	cookied := segment4(4000, wire.ACK)
	stamp := stampFor(cookied, testCookies, 0, chosen)
	for _, pause := range []time.Duration{time.Second, 20 * time.Second, time.Hour} {
		f.pass(pause)
		if got, _ := f.noted(segment4(4000, wire.ACK, usualOptions(stamp)...)); got.member.Member != chosen {
			t.Errorf("after %v more its cookie leads to member %d, the SYN went to %d", pause, got.member.Member, chosen)
		}
	}
	// A server without timestamps, other than the one of the ring: the segments after the SYN have none (RFC 7323 section 3.2).
	port := uint16(5000)
	for {
		chosen = f.open(port)
		if says, _ := f.model.ring(f.model.state.Endpoints[0], f.ringHash(port)); says != chosen {
			break
		}
		port++
	}
	for _, s := range []struct {
		pause time.Duration
		flags uint8
		class FlowClass
	}{
		{9 * time.Second, wire.ACK, FlowTrusted}, {290 * time.Second, wire.ACK, FlowTrusted},
		{time.Second, wire.ACK | wire.FIN, FlowClosing}, {50 * time.Second, wire.ACK, FlowClosing},
	} {
		f.pass(s.pause)
		if got := f.send(port, s.flags).member.Member; got != chosen {
			t.Fatalf("segment with flags %#x, %v later: to member %d, the SYN went to %d", s.flags, s.pause, got, chosen)
		}
	}
}

// TestSYNFloodPasses: twelve seconds after a flood of SYNs to an endpoint with cookies nothing of it is left, and new flows find room at once.
func TestSYNFloodPasses(t *testing.T) {
	f, other := openingServers(t, AffinityCookie, time.Minute), flowEndpoint(81, "10.20.1.11")
	other.Idle.Untrusted = time.Hour // does not keep what it does not own
	f.to(f.model.state.Endpoints[0], other)
	f.schedule([]uint16{0, 1, 2})
	for port := range uint16(5000) {
		f.check(segment4(1000+port, wire.SYN, usualOptions(0)...).Frame())
	}
	f.checkFlows()
	full := f.reasonsNow()["flow_table_full"]
	f.pass(12 * time.Second)
	f.model.sweep()
	totals, err := f.mux.Sweep()
	must(t, err)
	f.checkFlows()
	if totals.Expired < 100 || len(totals.ByClass) > 0 {
		t.Errorf("swept %+v", totals)
	}
	f.open(1000)
	if n := f.reasonsNow()["flow_table_full"]; n != full {
		t.Errorf("no room for %d flows after the flood", n-full)
	}
}

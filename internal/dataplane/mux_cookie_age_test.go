package dataplane

import (
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestFlowsBeforeCookies: on an endpoint that had flows before it had cookies, a connection that the flow table knows stays where it is, although its echo, which
// is the server's own timestamp, reads as the cookie of another member. Connections that the table does not know go by cookie, and so does everything once the
// endpoint is no longer young.
func TestFlowsBeforeCookies(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		for _, kind := range []ScheduleKind{ScheduleRing, ScheduleNext} {
			servers := cookieServers()
			plain := slices.Clone(servers)
			for i := range plain {
				plain[i].Affinity, plain[i].Cookie, plain[i].Scheduler = AffinityFlow, nil, kind
				servers[i].FlowsFirst, servers[i].Scheduler = true, kind
			}
			f := newFlowFixture(t, plain...)
			home := map[uint16]uint16{}
			for from := uint16(1000); from < 1030; from++ {
				home[from] = f.check(segment(from, wire.SYN).Frame()).member.Member
				f.check(segment(from, wire.ACK).Frame())
				f.check(segment(from, wire.ACK).Frame())
			}
			f.to(servers...)
			other := func(from uint16) []byte {
				return usualOptions(stampFor(segment(from, 0), testCookies, uint8(from%2), (home[from]+1)%3))
			}
			for from, id := range home {
				for _, flags := range []uint8{wire.ACK, wire.ACK | wire.PSH, wire.ACK | wire.FIN, wire.ACK} {
					if got, counted := f.noted(segment(from, flags, other(from)...)); got.member.Member != id || len(counted) > 0 {
						t.Fatalf("flow %d, flags %#x: member %d, counted %v: it is member %d's", from, flags, got.member.Member, counted, id)
					}
				}
			}
			// A new connection has an entry from its SYN on, and keeps to it before its server stamps.
			first := f.check(segment(2000, wire.SYN, usualOptions(0)...).Frame()).member.Member
			home[2000] = first
			if got, _ := f.noted(segment(2000, wire.ACK, other(2000)...)); got.member.Member != first {
				t.Errorf("a connection that began since: member %d, its SYN went to %d", got.member.Member, first)
			}
			// A mux that did not see a connection reads its cookie.
			home[2001] = 0
			if got, counted := f.noted(segment(2001, wire.ACK, other(2001)...)); got.member.Member != 1 || len(counted) > 0 {
				t.Errorf("a connection with a cookie: %+v, counted %v", got, counted)
			}
			// One of affinity hash has no entry before. The first echo that is no cookie makes it one.
			first = f.check(segment(2002, wire.ACK, usualOptions(stampFor(segment(2002, 0), testCookies, 0, 1000))...).Frame()).member.Member
			home[2002] = first
			if got, counted := f.noted(segment(2002, wire.ACK, other(2002)...)); got.member.Member != first || len(counted) > 0 {
				t.Errorf("a connection of affinity hash: %+v, counted %v, its first packet went to %d", got, counted, first)
			}
			for i := range servers {
				servers[i].FlowsFirst = false
			}
			f.to(servers...)
			if got, _ := f.noted(segment(1001, wire.ACK, other(1001)...)); got.member.Member != (home[1001]+1)%3 {
				t.Errorf("the endpoint is no longer young, but a cookie did not count: member %d", got.member.Member)
			}
		}
	})
}

// TestFlowsBeforeConnectionIDs is TestFlowsBeforeCookies for QUIC: a socket that the flow table trusts stays with its member. Entries of connections that begin
// do not count: one socket may have several, at different servers.
func TestFlowsBeforeConnectionIDs(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	plain := f.e
	plain.Affinity, plain.QUIC = AffinityFlow, nil
	f.to(plain)
	home := f.send(4000, shortHeader(f.id(0)))
	f.send(4000, shortHeader(f.id(0)))
	f.e.FlowsFirst = true
	f.to(f.e)
	next := (home + 1) % 3
	if got := f.send(4000, shortHeader(f.id(next))); got != home {
		t.Errorf("a socket from before went to member %d by its connection id, it is member %d's", got, home)
	}
	if got := f.send(4000, longHeader(quicInitial, []byte{1, 2, 3, 4, 5, 6, 7, 8}, []byte{9})); got != home {
		t.Errorf("its next connection went to member %d", got)
	}
	began := f.send(4001, longHeader(quicInitial, []byte{1, 2, 3, 4, 5, 6, 7, 8}, []byte{9}))
	if got := f.send(4001, shortHeader(f.id((began+1)%3))); got != (began+1)%3 {
		t.Errorf("a connection with an id of its server went to member %d", got)
	}
	f.e.FlowsFirst = false
	f.to(f.e)
	if got := f.send(4000, shortHeader(f.id(next))); got != next {
		t.Errorf("the endpoint is no longer young, but an id did not count: member %d", got)
	}
}

// TestDeadMembersKeepFlows: with KeepDead a dead member that is still there keeps the flows that name it, by cookie, connection id or flow table, and gets no new
// ones; a member that is gone does not.
func TestDeadMembersKeepFlows(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		servers := cookieServers()
		for i := range servers {
			servers[i].KeepDead = true
		}
		f := newFlowFixture(t, servers...)
		withoutCookie := f.check(segment(4000, wire.ACK).Frame()).member.Member
		f.check(segment(4000, wire.ACK).Frame())
		for _, e := range servers {
			f.setAlive(MemberAlive{e.Key, withoutCookie, false})
		}
		named := usualOptions(stampFor(segment(4001, 0), testCookies, 0, withoutCookie))
		for _, p := range []wire.Packet{segment(4000, wire.ACK), segment(4001, wire.ACK, named...), segment(4001, wire.ACK|wire.FIN, named...)} {
			if got, counted := f.noted(p); got.member == nil || got.member.Member != withoutCookie || slices.Contains(counted, "flow_moved") {
				t.Errorf("%+v, counted %v: it is member %d's", got, counted, withoutCookie)
			}
		}
		for from := uint16(4002); from < 4040; from++ {
			if got := f.check(segment(from, wire.SYN, usualOptions(0)...).Frame()); got.member.Member == withoutCookie {
				t.Errorf("a new connection went to a dead member")
			}
		}
		for i := range servers {
			servers[i].Members = slices.DeleteFunc(slices.Clone(servers[i].Members), func(m MuxMember) bool { return m.ID == withoutCookie })
			servers[i] = withRing(servers[i], servers[i].Members[0].ID, servers[i].Members[1].ID)
		}
		f.to(servers...)
		for _, p := range []wire.Packet{segment(4000, wire.ACK), segment(4001, wire.ACK, named...)} {
			if got, _ := f.noted(p); got.member == nil || got.member.Member == withoutCookie {
				t.Errorf("a member that is gone got %+v", got)
			}
		}
	})
	q := newQUICFixture(t, quicKeys)
	q.e.KeepDead = true
	q.to(q.e)
	q.setAlive(MemberAlive{q.e.Key, 1, false})
	if got := q.send(4000, shortHeader(q.id(1))); got != 1 {
		t.Errorf("a connection id of a dead member: went to %d", got)
	}
}

// TestResetAfterFIN: a client's kernel answers data for a socket that its program closed with a RST without timestamps (RFC 7323 section 3.2). After a FIN with
// a cookie it goes to the cookie's member, whatever ring and scheduler say; the next connection of the port is chosen for anew.
func TestResetAfterFIN(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		for _, kind := range []ScheduleKind{ScheduleRing, ScheduleNext} {
			servers := cookieServers()
			for i := range servers {
				servers[i].Scheduler = kind
			}
			f := newFlowFixture(t, servers...)
			for from := uint16(1000); from < 1030; from++ {
				ring := f.model.walk(segment(from, wire.RST).Frame()).member.Member
				f.model.eachFlow(func(e *modelFlow) { *e = modelFlow{} })
				id := (ring + 1) % 3
				stamp := usualOptions(stampFor(segment(from, 0), testCookies, 0, id))
				for _, flags := range []uint8{wire.ACK, wire.ACK | wire.FIN, wire.RST} {
					options := stamp
					if flags == wire.RST {
						options = nil
					}
					if got, _ := f.noted(segment(from, flags, options...)); got.member.Member != id {
						t.Fatalf("flags %#x: went to member %d, it is member %d's", flags, got.member.Member, id)
					}
				}
				if got := f.check(segment(from, wire.SYN, usualOptions(0)...).Frame()); kind == ScheduleRing && got.member.Member != ring {
					t.Errorf("the next connection went to member %d, the ring says %d", got.member.Member, ring)
				}
				// The mux and its model begin the next flow without entries.
				for i := range f.model.flows.buckets {
					f.mux.memory.flows[i], f.model.flows.buckets[i] = muxFlowBucket{}, [8]modelFlow{}
				}
			}
		}
	})
}

// TestSYNWithoutTimestamps: a client without timestamps echoes no cookie, so that the ring chooses its server, as it does at any mux; of one with timestamps the
// scheduler does. A repeated SYN without them, as some systems send, stays where the first one went.
func TestSYNWithoutTimestamps(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		servers := cookieServers()
		for i := range servers {
			servers[i].Scheduler = ScheduleNext
		}
		f := newFlowFixture(t, servers...)
		byRing := newFlowFixture(t, cookieServers()...)
		for _, e := range servers {
			must(t, f.setSchedule(Schedule{Endpoint: e.Key, Kind: ScheduleNext, Sequence: []uint16{0, 1, 2}}))
			f.beginAt(e.Key)
		}
		mss := []byte{2, 4, 5, 0xb4}
		scheduled := 0
		for from := uint16(1000); from < 1060; from++ {
			ring := byRing.check(segment(from, wire.SYN).Frame()).member.Member
			if got := f.check(segment(from, wire.SYN, mss...).Frame()); got.member.Member != ring {
				t.Errorf("without timestamps port %d went to member %d, the ring says %d", from, got.member.Member, ring)
			}
			first := f.check(segment(from+1000, wire.SYN, append(mss, timestampsOption(1, 0)...)...).Frame()).member.Member
			if first != byRing.check(segment(from+1000, wire.SYN).Frame()).member.Member {
				scheduled++
			}
			if got := f.check(segment(from+1000, wire.SYN, mss...).Frame()); got.member.Member != first {
				t.Errorf("a repeated SYN of port %d went to member %d, the first to %d", from+1000, got.member.Member, first)
			}
		}
		if scheduled == 0 {
			t.Error("the scheduler never chose")
		}
		f.checkFlows()
	})
}

// TestTraceOfYoungCookies: a trace says why the flow table went before the cookie, and that a dead member keeps its flows.
func TestTraceOfYoungCookies(t *testing.T) {
	servers := cookieServers()
	servers[0].FlowsFirst, servers[0].KeepDead = true, true
	f := newFlowFixture(t, servers...)
	home := f.check(segment4(4000, wire.ACK).Frame()).member.Member
	other := (home + 1) % 3
	q := Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.TCP, ClientPort: 4000, Port: 80, Segment: SegmentLater, Echo: stampFor(segment4(4000, 0), testCookies, 0, other)}
	traced, err := f.mux.Trace(q)
	must(t, err)
	if traced.Member != home || !slices.Contains(traced.Steps, "the endpoint has cookies only since lately: flows in the flow table go first") {
		t.Errorf("to member %d, it is member %d's: %q", traced.Member, home, traced.Steps)
	}
	f.setAlive(MemberAlive{servers[0].Key, other, false})
	q.ClientPort, q.Echo = 4001, stampFor(segment4(4001, 0), testCookies, 0, other)
	if traced, err = f.mux.Trace(q); err != nil || traced.Member != other {
		t.Errorf("to member %d, it is member %d's although dead: %q, %v", traced.Member, other, traced.Steps, err)
	}
}

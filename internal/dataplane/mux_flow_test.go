package dataplane

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/wire"
)

// flowFixture has a model with a flow table, and a clock that stands still.
type flowFixture struct{ policyFixture }

func newFlowFixture(t *testing.T, endpoints ...MuxEndpoint) flowFixture {
	f := flowFixture{policyFixture{newMuxFixtureWith(t, MuxOptions{testClock: true})}}
	f.model.flows = modelFlowsOf(f.mux)
	f.model.policy = modelPolicy{
		hz: f.mux.tables.guards.hz, packets: map[netip.Addr]*bucketModel{}, flows: map[netip.Addr]*bucketModel{},
	}
	f.setNow(1 << 36)
	f.to(endpoints...)
	return f
}

// flowEndpoint is an endpoint that remembers flows: 30 s untrusted, 300 s trusted.
func flowEndpoint(port uint16, outers ...string) MuxEndpoint {
	e := endpointOf(muxVIP4, lb.TCP, port, outers...)
	e.Affinity, e.Idle = AffinityFlow, lb.Idle{Untrusted: 30 * time.Second, Trusted: 300 * time.Second}
	return e
}

// to goes to a state with these endpoints.
func (f flowFixture) to(endpoints ...MuxEndpoint) {
	f.t.Helper()
	stays := map[lb.EndpointKey]bool{}
	for _, e := range endpoints {
		stays[e.Key] = true
	}
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: endpoints}
	before, blocks := f.mux.tables.sweeps, map[lb.EndpointKey]block{}
	for key, e := range f.mux.tables.entries {
		blocks[key] = e.block
	}
	f.apply(s)
	if f.mux.tables.sweeps != before {
		f.model.forget()
	}
	f.model.leave(stays)
	f.model.eachFlow(func(g *modelFlow) {
		if e := f.mux.tables.entries[g.member.Endpoint]; !g.gone && e != nil && e.block != blocks[g.member.Endpoint] {
			g.moved = true
		}
	})
	f.setHops(hopsTo(s))
}

// pass lets time pass.
func (f flowFixture) pass(d time.Duration) {
	f.t.Helper()
	j, err := jiffy()
	must(f.t, err)
	f.setNow(f.model.policy.now + uint64(d/j))
}

// send checks a segment of the flow from a port, and the table after it.
func (f flowFixture) send(port uint16, flags uint8) modelResult {
	f.t.Helper()
	got := f.check(tcpSegment(80, port, flags).Frame())
	f.checkFlows()
	return got
}

func tcpSegment(to, from uint16, flags uint8) wire.Packet {
	p := tcp4(to)
	p.Payload = wire.TCP{SrcPort: from, DstPort: to, Flags: flags}
	return p
}

// checkFlows compares the whole flow table with the model's.
func (f flowFixture) checkFlows() {
	f.t.Helper()
	for i, bucket := range f.model.flows.buckets {
		for j, want := range bucket {
			w := flowWord(f.mux.memory.flows[i].Entries[j])
			want.moved = want.moved && !want.gone // of what is gone nobody knows where it is
			if got := f.modelFlow(w); got != want {
				f.t.Fatalf("bucket %d, entry %d is %#x, %+v; wanted %+v", i, j, w, got, want)
			}
		}
	}
}

// modelFlow is an entry of the table in the model's words.
func (f flowFixture) modelFlow(w flowWord) modelFlow {
	if w == 0 {
		return modelFlow{}
	}
	m := modelFlow{fingerprint: uint64(w) >> 39, class: w.class(), stamp: uint64(w) & 0xffff, gone: true}
	owner := f.mux.tables.owners[w.member()/memberBlockMin]
	if owner == nil {
		// Which endpoint it was, the table does not know any more.
		i := slices.IndexFunc(f.model.flows.buckets, func(b [8]modelFlow) bool {
			return slices.ContainsFunc(b[:], func(g modelFlow) bool { return g.gone && g.fingerprint == m.fingerprint })
		})
		if i >= 0 {
			b := f.model.flows.buckets[i]
			m.member = b[slices.IndexFunc(b[:], func(g modelFlow) bool { return g.gone && g.fingerprint == m.fingerprint })].member
		}
		return m
	}
	for key, e := range f.mux.tables.entries {
		if e == owner {
			id := w.member() - e.block.first
			if id >= e.block.words {
				id, m.moved = w.member()-e.moved.first, true
			}
			m.member, m.gone = MemberKey{key, uint16(id)}, false
		}
	}
	return m
}

// classOf is the class of the flow from a port, as Flows lists it: 0 when there is none.
func (f flowFixture) only() Flow {
	f.t.Helper()
	flows, err := f.mux.listFlows(f.model.state.Endpoints[0].Key, 10)
	must(f.t, err)
	if len(flows) != 1 {
		f.t.Fatalf("flows are %+v", flows)
	}
	return flows[0]
}

// flowServers is the usual endpoint of these tests; without is it with a ring that has not this member.
func flowServers() MuxEndpoint { return flowEndpoint(80, "10.20.1.11", "10.20.2.11", "10.20.3.11") }

// without takes a member out of the ring: it has no weight any more.
func without(e MuxEndpoint, id uint16) MuxEndpoint {
	e.Members = slices.Clone(e.Members)
	var members []ring.Member
	for i := range e.Members {
		m := &e.Members[i]
		m.Choosable = m.Choosable && m.ID != id
		if m.Choosable {
			members = append(members, ring.Member{ID: m.ID, DIP: m.Outer, Port: 8080, Weight: 1})
		}
	}
	e.Ring = ring.Build(e.RingCode, members)
	return e
}

func TestFlowIsTrustedByALaterSegment(t *testing.T) {
	f := newFlowFixture(t, flowServers())
	f.send(4000, wire.SYN)
	if got := f.only(); got.Class != FlowUntrusted || got.Age != 0 {
		t.Errorf("after the SYN: %+v", got)
	}
	f.send(4000, wire.ACK)
	if got := f.only(); got.Class != FlowTrusted {
		t.Errorf("after a segment with ACK: %+v", got)
	}
	f.pass(5 * time.Second)
	if got := f.only(); got.Age < 4*time.Second || got.Age > 6*time.Second {
		t.Errorf("after five seconds: %+v", got)
	}
	f.send(4000, wire.ACK|wire.FIN)
	if got := f.only(); got.Class != FlowClosing || got.Age != 0 {
		t.Errorf("after FIN: %+v", got)
	}
	f.send(4000, wire.ACK)
	if got := f.only(); got.Class != FlowClosing {
		t.Errorf("a closing flow became %+v", got)
	}
	f.send(4000, wire.SYN)
	if got := f.only(); got.Class != FlowUntrusted {
		t.Errorf("the port's next connection is %+v", got)
	}
	f.send(4000, wire.RST)
	if got := f.only(); got.Class != FlowClosing {
		t.Errorf("after RST: %+v", got)
	}
}

// TestSYNRetransmission: the ring changes between a SYN and its retransmission, and both reach one server; so does what
// follows, while the server drains. A new connection does not.
func TestSYNRetransmission(t *testing.T) {
	f := newFlowFixture(t, flowServers())
	first := f.send(4000, wire.SYN).member.Member
	f.to(without(flowServers(), first))
	for _, flags := range []uint8{wire.SYN, wire.SYN, wire.ACK, wire.ACK | wire.PSH, wire.FIN | wire.ACK, wire.ACK} {
		if got := f.send(4000, flags).member.Member; got != first {
			t.Fatalf("flags %#x: sent to member %d, the flow is member %d's", flags, got, first)
		}
	}
	if got := f.send(4000, wire.SYN).member.Member; got == first {
		t.Errorf("a new connection went to member %d, which drains", got)
	}
}

// TestStrangersSYN: SYNs with the tuples of established flows move none, whether their server takes new flows, drains or is dead and kept, and lose none its
// trust. A connection that ended leaves its port to another server.
func TestStrangersSYN(t *testing.T) {
	six := flowServers()
	six.Key.VIP = muxVIP6
	source := flowServers()
	source.SourcePrefix4, source.SourceFor = 24, 5*time.Minute
	for name, e := range map[string]MuxEndpoint{"IPv4": flowServers(), "IPv6": six, "source": source} {
		t.Run(name, func(t *testing.T) {
			f := newFlowFixture(t, e)
			send := func(port uint16, flags uint8) uint16 {
				t.Helper()
				p := wire.Packet{DstMAC: muxSelf, Src: muxClient4, Dst: e.Key.VIP, Payload: wire.TCP{SrcPort: port, DstPort: 80, Flags: flags}}
				if e.Key.VIP.Is6() {
					p.Src = muxClient6
				}
				return f.check(p.Frame()).member.Member
			}
			was := map[uint16]uint16{}
			for port := range uint16(20) {
				send(port, wire.SYN)
				was[port] = send(port, wire.ACK)
			}
			draining := was[0]
			f.to(without(e, draining))
			for port, member := range was {
				for _, flags := range []uint8{wire.SYN, wire.SYN | wire.ACK, wire.SYN, wire.ACK, wire.ACK | wire.PSH} {
					if got := send(port, flags); got != member {
						t.Fatalf("flags %#x: port %d went from member %d to %d", flags, port, member, got)
					}
				}
			}
			f.model.eachFlow(func(g *modelFlow) {
				if g.class == FlowUntrusted && e.sourceBits() == 0 {
					t.Error("a SYN took a flow's trust")
				}
			})
			send(0, wire.FIN|wire.ACK)
			if send(0, wire.SYN) == draining {
				t.Error("a connection after one that ended went to a member that drains")
			}
			f.setAlive(MemberAlive{e.Key, was[1], false})
			if send(1, wire.SYN) == was[1] {
				t.Error("a SYN went to a dead member")
			}
		})
	}
}

func TestFlowExpires(t *testing.T) {
	f := newFlowFixture(t, flowServers())
	first := f.send(4000, wire.SYN).member.Member
	f.to(without(flowServers(), first))
	f.pass(33 * time.Second)
	if got := f.send(4000, wire.ACK).member.Member; got == first {
		t.Error("an untrusted flow was remembered for 33 s")
	}
	second := f.send(4000, wire.ACK).member.Member
	f.to(without(flowServers(), second))
	f.pass(290 * time.Second)
	if got := f.send(4000, wire.ACK).member.Member; got != second {
		t.Error("a trusted flow was forgotten within 290 s")
	}
	f.pass(303 * time.Second)
	if got := f.send(4000, wire.ACK).member.Member; got == second {
		t.Error("a trusted flow was remembered for 303 s")
	}
}

// TestDeadMemberLosesItsFlows: and the others keep theirs.
func TestDeadMemberLosesItsFlows(t *testing.T) {
	f := newFlowFixture(t, flowServers())
	was := map[uint16]uint16{}
	for port := range uint16(40) {
		f.send(port, wire.SYN)
		was[port] = f.send(port, wire.ACK).member.Member
	}
	f.setAlive(MemberAlive{flowServers().Key, 1, false})
	moved := f.reasonsNow()["flow_moved"]
	for port, member := range was {
		now := f.send(port, wire.ACK).member.Member
		if member != 1 && now != member || now == 1 {
			t.Errorf("port %d went from member %d to %d", port, member, now)
		}
		if member == 1 {
			moved++
		}
		was[port] = now
	}
	if got := f.reasonsNow()["flow_moved"]; got != moved {
		t.Errorf("flow_moved is %d, wanted %d", got, moved)
	}
	// Alive again, it gets none of them back.
	f.setAlive(MemberAlive{flowServers().Key, 1, true})
	for port, member := range was {
		if now := f.send(port, wire.ACK).member.Member; now != member {
			t.Errorf("port %d went back from member %d to %d", port, member, now)
		}
	}
	// Removed is as dead.
	e := flowServers()
	e.Members, e.Ring = e.Members[1:], without(e, 0).Ring
	f.to(e)
	for port := range was {
		if now := f.send(port, wire.ACK).member.Member; now == 0 {
			t.Errorf("port %d goes to a member that is gone", port)
		}
	}
}

// fill makes n flows in bucket 0, by trying source ports from one on, and returns the ports.
func (f flowFixture) fill(from uint16, n int, flags ...uint8) (ports []uint16) {
	f.t.Helper()
	for port := from; len(ports) < n; port++ {
		if f.bucketOf(port) != 0 {
			continue
		}
		for _, flag := range flags {
			f.send(port, flag)
		}
		ports = append(ports, port)
	}
	return ports
}

// bucketOf is the bucket of the flow from a port.
func (f flowFixture) bucketOf(port uint16) uint64 {
	hash := ring.TableHash(f.model.flows.key, 0, muxClient4, muxVIP4, 6, port, 80)
	return hash % uint64(len(f.model.flows.buckets))
}

// TestSYNFlood: it takes half of a bucket, and no trusted flow's place.
func TestSYNFlood(t *testing.T) {
	f := newFlowFixture(t, flowServers())
	trusted := f.fill(1, 6, wire.SYN, wire.ACK)
	f.fill(20_000, 100, wire.SYN)
	classes := map[FlowClass]int{}
	for _, flow := range f.model.flows.buckets[0] {
		classes[flow.class]++
	}
	if classes[FlowTrusted] != 6 || classes[FlowUntrusted] != 2 {
		t.Errorf("after a flood the bucket has %v", classes)
	}
	if got := f.reasonsNow(); got["flow_moved"]+got["flow_table_full"] != 0 {
		t.Errorf("counted %v", got)
	}
	for _, port := range trusted {
		f.send(port, wire.ACK)
	}
	// An empty table gives a flood no more than half of it.
	f.to()
	f.to(flowServers())
	f.fill(20_000, 100, wire.SYN)
	classes = map[FlowClass]int{}
	for _, flow := range f.model.flows.buckets[0] {
		if !flow.gone {
			classes[flow.class]++
		}
	}
	if classes[FlowUntrusted] > 4 {
		t.Errorf("a flood has %v of a bucket", classes)
	}
}

// TestSYNAndACKFlood: a sender who makes up the ACK too, which he can as nothing proves that he heard the server, fills the
// table with trusted flows. He takes no place of a trusted flow either; newcomers go by the ring, and that is counted.
func TestSYNAndACKFlood(t *testing.T) {
	f := newFlowFixture(t, flowServers())
	own := f.fill(1, 3, wire.SYN, wire.ACK)
	f.fill(20_000, 60, wire.SYN, wire.ACK)
	full := f.reasonsNow()["flow_table_full"]
	if full == 0 {
		t.Error("a full bucket was not counted")
	}
	for _, port := range own {
		f.send(port, wire.ACK)
	}
	if got := f.reasonsNow()["flow_table_full"]; got != full {
		t.Errorf("trusted flows lost their places: %d, then %d", full, got)
	}
	// What is not remembered is forwarded all the same.
	port := f.fill(40_000, 1, wire.SYN)[0]
	if got := f.send(port, wire.ACK); got.reason != "forwarded" {
		t.Errorf("sent: %+v", got)
	}
	f.pass(303 * time.Second)
	f.send(port, wire.SYN)
	if got := f.reasonsNow()["flow_table_full"]; got < full {
		t.Error("the reasons went back")
	}
}

// TestFlowsFollowTheirMembers: an endpoint grows out of its place under live flows, which a sweep then rewrites.
func TestFlowsFollowTheirMembers(t *testing.T) {
	f := newFlowFixture(t, flowServers(), flowEndpoint(81, "10.20.1.11"))
	was := map[uint16]uint16{}
	for port := range uint16(60) {
		f.send(port, wire.SYN)
		was[port] = f.send(port, wire.ACK).member.Member
	}
	grown := flowServers()
	for id := uint16(3); id < 30; id++ {
		grown.Members = append(grown.Members, MuxMember{ID: id, Outer: netip.AddrFrom4([4]byte{10, 20, 4, byte(id)}), MTU: 1500, Alive: true})
	}
	first := f.mux.tables.entries[grown.Key].block
	f.to(grown, flowEndpoint(81, "10.20.1.11"))
	if f.mux.tables.entries[grown.Key].block == first {
		t.Fatal("the members did not move")
	}
	for port := range uint16(30) {
		if got := f.send(port, wire.ACK).member.Member; got != was[port] {
			t.Errorf("port %d went from member %d to %d", port, was[port], got)
		}
	}
	f.readopt() // another process finishes it
	f.model.eachFlow(func(g *modelFlow) { g.moved = false })
	if e := f.mux.tables.entries[grown.Key]; e.moved.words != 0 || e.flags()&muxEndpointFlagENDPOINT_MOVED != 0 {
		t.Errorf("after a sweep: %+v", e)
	}
	f.checkFlows()
	for port := range uint16(60) {
		if got := f.send(port, wire.ACK).member.Member; got != was[port] {
			t.Errorf("port %d went from member %d to %d", port, was[port], got)
		}
	}
	if n := f.reasonsNow()["flow_moved"]; n != 0 {
		t.Errorf("flow_moved counted %d times", n)
	}
}

// TestFalseMatch: an entry with the same fingerprint whose member is another endpoint's is nobody's flow here.
func TestFalseMatch(t *testing.T) {
	other := flowEndpoint(81, "10.20.9.9")
	f := newFlowFixture(t, flowServers(), other)
	f.send(4000, wire.SYN)
	f.send(4000, wire.ACK)
	bucket := f.bucketOf(4000)
	entry := &f.mux.memory.flows[bucket].Entries[0]
	foreign := f.mux.tables.entries[other.Key].block.first
	*entry = uint64(flowWord(*entry).withMember(foreign))
	f.model.flows.buckets[bucket][0].member = MemberKey{other.Key, 0}
	f.checkFlows()
	if got := f.send(4000, wire.ACK); got.member.Endpoint != flowServers().Key {
		t.Errorf("sent to %+v", got.member)
	}
}

// TestSweep: it forgets what is idle, by each endpoint's own time, counts the rest, and frees what was given up.
func TestSweep(t *testing.T) {
	short := flowEndpoint(81, "10.20.1.11")
	short.Idle = lb.Idle{Untrusted: 5 * time.Second, Trusted: 10 * time.Second}
	f := newFlowFixture(t, flowServers(), short)
	f.send(1, wire.SYN)
	f.send(2, wire.SYN)
	f.send(2, wire.ACK)
	f.check(tcpSegment(81, 3, wire.SYN).Frame())
	f.check(tcpSegment(81, 4, wire.SYN).Frame())
	f.check(tcpSegment(81, 4, wire.ACK).Frame())
	f.pass(8 * time.Second)
	expired := f.model.sweep()
	totals, err := f.mux.Sweep()
	must(t, err)
	f.checkFlows()
	if totals.Expired != 1 || expired != 1 || totals.ByClass[FlowUntrusted] != 1 || totals.ByClass[FlowTrusted] != 2 {
		t.Errorf("swept %+v", totals)
	}
	if n := totals.Members[MemberKey{short.Key, 0}]; n != 1 {
		t.Errorf("swept %+v", totals)
	}
	f.to(flowServers())
	f.model.sweep()
	totals, err = f.mux.Sweep()
	must(t, err)
	f.checkFlows()
	if totals.ByClass[FlowTrusted] != 1 || totals.Capacity != uint64(testLimits.Flows) {
		t.Errorf("swept %+v", totals)
	}
	for _, p := range f.mux.Pressure() {
		if p.Name == "flows" && (p.Used != 2 || p.Capacity != uint64(testLimits.Flows)) {
			t.Errorf("pressure %+v", p)
		}
	}
	f.to()
	_, err = f.mux.Sweep()
	must(t, err)
	f.checkEmpty()
}

// TestBackups: one store changes the ring, and flows stay where they are.
func TestBackups(t *testing.T) {
	e := flowServers()
	e.BackupRing, e.BackupCode = e.Ring, e.RingCode
	e.Ring = without(e, 2).Ring
	f := newFlowFixture(t, e)
	use := func(on bool) {
		f.mux.SetBackup(map[lb.EndpointKey]bool{e.Key: on})
		f.model.state.Endpoints[0].UseBackup = on
	}
	was := map[uint16]uint16{}
	seen := map[bool]bool{}
	for _, on := range []bool{false, true, false} {
		use(on)
		for port := range uint16(50) {
			if on {
				port += 100
			}
			got := f.send(port, wire.SYN).member.Member
			if before, ok := was[port]; ok && got != before {
				t.Errorf("port %d went from member %d to %d", port, before, got)
			}
			was[port] = got
			seen[on] = seen[on] || got == 2
		}
		f.readopt()
		f.to(f.model.state.Endpoints...)
		if f.mux.tables.entries[e.Key].backup != on {
			t.Errorf("backups %v, and after a restart not", on)
		}
	}
	if seen[false] || !seen[true] {
		t.Errorf("the backup was chosen: %v", seen)
	}
}

// TestFlowsAgainstModel sends random segments of few flows through a small table, while members come, go, die and move,
// time passes and sweeps run.
func TestFlowsAgainstModel(t *testing.T) {
	f, r := newFlowFixture(t, flowServers()), seeded(t)
	for step := range 30_000 {
		switch n := r.IntN(600); {
		case n == 0:
			f.to(randomFlowEndpoints(r)...)
		case n < 4:
			f.randomFlips(r)
		case n < 8:
			f.pass(time.Duration(r.IntN(60)) * time.Second)
		case n == 8:
			f.over()
		}
		frame := randomFlowPacket(r).Frame()
		before := fmt.Sprintf("step %d", step)
		f.check(frame)
		if step%50 == 0 || t.Failed() {
			f.checkFlows()
		}
		if t.Failed() {
			t.Fatal(before)
		}
	}
	t.Log(f.reasonsNow())
}

// randomFlowEndpoints are some endpoints of random members.
func randomFlowEndpoints(r *rand.Rand) (endpoints []MuxEndpoint) {
	for _, port := range []uint16{80, 81, 82, 53, 83, 54} {
		if r.IntN(4) == 0 {
			continue
		}
		e := flowEndpoint(port)
		if port == 53 || port == 54 {
			e.Key.Protocol = lb.UDP
		}
		remembers := port == 83 || port == 54
		if remembers { // clients of four prefixes
			e.SourcePrefix4, e.SourceFor = 31, time.Duration(1+r.IntN(400))*time.Second
			e.Fragments3Tuple = r.IntN(3) == 0
		}
		e.Idle = lb.Idle{Untrusted: time.Duration(1+r.IntN(40)) * time.Second, Trusted: time.Duration(1+r.IntN(300)) * time.Second}
		if r.IntN(3) == 0 {
			e.Affinity = AffinityHash
		}
		most := uint16(1 << r.IntN(5))
		if remembers {
			most = 4 // words that move are a slow way, which asks for the client too
		}
		for id := range most {
			if r.IntN(3) != 0 || remembers && id == 3 {
				e.Members = append(e.Members, MuxMember{ID: id, Outer: netip.AddrFrom4([4]byte{10, 20, 1, byte(id)}), MTU: 1500,
					Choosable: r.IntN(5) != 0, Alive: r.IntN(5) != 0})
			}
		}
		endpoints = append(endpoints, without(e, 99))
	}
	return endpoints
}

// randomFlowPacket is of one of a few hundred flows.
func randomFlowPacket(r *rand.Rand) wire.Packet {
	port := []uint16{80, 80, 81, 82, 53, 83, 83, 54}[r.IntN(8)]
	from, client := uint16(r.IntN(400)), muxClient4
	if port == 83 || port == 54 {
		a := client.As4()
		a[3], from = byte(8+r.IntN(8)), from%40
		client = netip.AddrFrom4(a)
	}
	if port == 53 || port == 54 {
		p := udp4(port)
		p.Src = client
		p.Payload = wire.UDP{SrcPort: from, DstPort: port, Data: []byte("query")}
		return p
	}
	flags := []uint8{wire.SYN, wire.ACK, wire.ACK, wire.ACK | wire.PSH, wire.FIN | wire.ACK, wire.RST, 0, wire.SYN | wire.ACK}
	p := tcpSegment(port, from, flags[r.IntN(len(flags))])
	p.Src = client
	return p
}

// TestTraceOfFlows: a trace says what the flow table says, and where the packet then goes.
func TestTraceOfFlows(t *testing.T) {
	f := newFlowFixture(t, flowServers())
	trace := func(s Segment) Trace {
		got, err := f.mux.Trace(Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.TCP, ClientPort: 4000, Port: 80, Segment: s})
		must(t, err)
		return got
	}
	unknown := trace(SegmentOpening)
	first := f.send(4000, wire.SYN).member.Member
	f.send(4000, wire.ACK)
	if unknown.Member != first || !slices.Contains(unknown.Steps, "the flow table does not know the flow") {
		t.Errorf("before the flow: %+v", unknown)
	}
	f.to(without(flowServers(), first))
	if got := trace(SegmentLater); got.Member != first || !outerIs(f.send(4000, wire.ACK).frame, got.Source, got.Outer) {
		t.Errorf("of the flow: %+v", got)
	}
	if got := trace(SegmentOpening); got.Member != first || f.send(4000, wire.SYN).member.Member != first {
		t.Errorf("a SYN of the established flow is traced to %+v", got)
	}
	f.send(4000, wire.FIN|wire.ACK)
	opening := trace(SegmentOpening)
	if want := f.send(4000, wire.SYN); opening.Member != want.member.Member || opening.Member == first {
		t.Errorf("a new connection is sent to %+v, traced %+v", want.member, opening)
	}
}

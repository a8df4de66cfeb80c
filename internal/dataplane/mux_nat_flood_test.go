package dataplane

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// flooder sends what somebody sends who does not get the answers.
type flooder struct {
	f    *natFixture
	next uint32
}

// one opens a session in another client's name each time, and claims to have heard the server's answer.
func (l *flooder) one() {
	l.next++
	c := l.f.talk(false, uint16(l.next))
	c.flow.client = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(l.next >> 16)}), uint16(l.next))
	send := func(flags uint8, seq, ack int) {
		p := c.segment(false, flags, seq, ack, 0)
		p.Src = c.flow.client.Addr()
		if want := l.f.in(p); want.packet != nil {
			c.lip, c.server, _, _ = endsOf(*want.packet)
		}
	}
	send(wire.SYN, 0, 0)
	if l.next%2 == 0 && c.lip.IsValid() {
		c.says(true, wire.SYN|wire.ACK, 0, 1, 0)
		send(wire.ACK, 1, 2+int(l.next)*1000)
		send(wire.ACK|wire.PSH, 1, -int(l.next))
	}
}

func (l *flooder) many(n int) {
	for range n {
		l.one()
	}
}

// untrusted counts the sessions in the table that are not trusted.
func (f *natFixture) untrusted() (n int) {
	f.t.Helper()
	_, err := f.mux.eachSession(context.Background(), func(_ muxNatKey, s *muxNatSession) bool {
		if !s.has(muxNatFlagNAT_TRUSTED) {
			n++
		}
		return true
	})
	must(f.t, err)
	return n
}

// TestNATFlood: SYNs in the names of others, with wrong acknowledgements and without, take the places of each other: connections that there are stay,
// and new ones are made, until those that are trusted are as many as there may be.
func TestNATFlood(t *testing.T) {
	const half = 128 // of testLimits.NAT
	f := newNATFixture(t, natServers()...)
	l := &flooder{f: f}
	var talks []*natTalk
	open := func(n int) {
		for range n {
			c := f.talk(false, uint16(40000+len(talks)))
			talks = append(talks, c)
			// As many newcomers as there is room for, which those that are trusted do not have.
			several := min(half, int(testLimits.NAT)-len(talks)) / 3
			c.says(false, wire.SYN, 0, 0, 0)
			l.many(several)
			c.says(true, wire.SYN|wire.ACK, 0, 1, 0)
			l.many(several)
			c.says(false, wire.ACK, 1, 1, 0)
		}
	}
	open(20)
	l.many(3 * half)
	if n := f.untrusted(); n != half {
		t.Errorf("%d sessions are not trusted", n)
	}
	open(int(testLimits.NAT) - 20)
	for i, c := range talks {
		if c.class() != "trusted" {
			t.Fatalf("connection %d of %d is %q", i, len(talks), c.class())
		}
		c.play(`
			> PA 1 1 100 trusted
			< A 1 101 50 trusted`)
	}
	f.sweep()
	if n := f.reasonsNow()["nat_displaced"]; n == 0 {
		t.Error("nat_displaced was not counted")
	}
	if n := f.reasonsNow()["nat_full"]; n != 0 {
		t.Errorf("%d newcomers were refused", n)
	}
	if c := f.talk(false, 60000); c.says(false, wire.SYN, 0, 0, 0).reason != "nat_full" {
		t.Error("there is no room, and a newcomer got some")
	}
	f.sweep()
}

// TestNATFloodSparesOthers: a flood at one VIP ends no connections of another one that wait for trust, however long their handshakes take, once a sweep has
// found out. The VIP of the flood still gets new connections.
func TestNATFloodSparesOthers(t *testing.T) {
	const half = 128 // of testLimits.NAT
	f := newNATFixture(t, natServers()...)
	l := &flooder{f: f}
	l.many(half)
	want := []Share{{lb.EndpointKey{VIP: muxVIP4}, "nat_untrusted", half, half * 3 / 4}}
	if got := f.sweep().Over; !slices.Equal(got, want) {
		t.Fatalf("over their share: %v, want %v", got, want)
	}
	shake := func(v6 bool, from uint16, between int) string {
		c := f.talk(v6, from)
		c.says(false, wire.SYN, 0, 0, 0)
		l.many(between)
		c.says(true, wire.SYN|wire.ACK, 0, 1, 0)
		l.many(between)
		c.says(false, wire.ACK, 1, 1, 0)
		return c.class()
	}
	for from := range uint16(10) {
		if got := shake(true, 1000+from, 3*half); got != "trusted" {
			t.Errorf("connection %d of the other VIP is %q", from, got)
		}
		if got := shake(false, 50000+from, half/3); got != "trusted" {
			t.Errorf("connection %d of the VIP of the flood is %q", from, got)
		}
	}
	f.sweep()
	// When the flood is over so is the mark.
	f.at(f.tick + uint64(f.mux.tables.ticks(natIdle.Untrusted)) + 1)
	f.sweep()
	if got := f.sweep().Over; len(got) != 0 {
		t.Errorf("after the flood: over their share: %v", got)
	}
}

// newSparingFixture is one whose first VIP floods, and is marked. Of those that wait for trust, `spared` sessions of the other VIP are the oldest, and all
// others are of the flood.
func newSparingFixture(t *testing.T, o MuxOptions, spared int) (*natFixture, []*natTalk) {
	t.Helper()
	const half = 128 // of testLimits.NAT
	f := newNATFixtureWith(t, o, natServers()...)
	l := &flooder{f: f}
	l.many(half)
	if over := f.sweep().Over; len(over) != 1 {
		t.Fatalf("over their share: %v", over)
	}
	var talks []*natTalk
	for from := range uint16(spared) {
		c := f.talk(true, 1000+from)
		c.says(false, wire.SYN, 0, 0, 0)
		talks = append(talks, c)
	}
	l.many(half - spared)
	return f, talks
}

// TestNATFloodTries: a newcomer of a VIP that floods gets the place that its last try has made. If that made none, the newcomer is refused, which counts
// as nat_full alone.
func TestNATFloodTries(t *testing.T) {
	tries := int(muxNatLimitLIMIT_NAT_TRIES)
	for spared, want := range map[int]string{0: "forwarded", tries - 1: "forwarded", tries: "nat_full"} {
		f, talks := newSparingFixture(t, MuxOptions{}, spared)
		before := f.reasonsNow()
		c := f.talk(false, 60000)
		if got := c.says(false, wire.SYN, 0, 0, 0).reason; got != want {
			t.Errorf("behind %d sessions that are spared: a newcomer is %q, expected %q", spared, got, want)
		}
		after := f.reasonsNow()
		displaced, full := uint64(1), uint64(0)
		if want == "nat_full" {
			displaced, full = 0, 1
		}
		if n, m := after["nat_displaced"]-before["nat_displaced"], after["nat_full"]-before["nat_full"]; n != displaced || m != full {
			t.Errorf("behind %d sessions that are spared: nat_displaced %d, nat_full %d, expected %d and %d", spared, n, m, displaced, full)
		}
		for i, c := range talks {
			if c.class() != "untrusted" {
				t.Errorf("of %d sessions that are spared number %d is %q", spared, i, c.class())
			}
		}
		f.sweep()
	}
}

// TestNATSparedHasAPlace: a session that is spared ends when another CPU has taken its place among those that wait for trust.
func TestNATSparedHasAPlace(t *testing.T) {
	// In the loaded program, the push returns that the queue is full.
	var full programPatch
	f, talks := newSparingFixture(t, MuxOptions{testSpec: full.returns("nat_displace", -int32(unix.E2BIG), func(in asm.Instruction) bool {
		return in.IsBuiltinCall() && in.Constant == int64(asm.FnMapPushElem)
	})}, 1)
	if full.patched == 0 {
		t.Fatal("the program puts nothing back")
	}
	before := f.reasonsNow()["nat_displaced"]
	c := f.talk(false, 60000)
	f.run(c.segment(false, wire.SYN, 0, 0, 0).Frame())
	if got := c.class(); got != "untrusted" {
		t.Errorf("the newcomer is %q", got)
	}
	if got := talks[0].class(); got != "" {
		t.Errorf("the session that has lost its place is %q", got)
	}
	if n := f.reasonsNow()["nat_displaced"] - before; n != 1 {
		t.Errorf("nat_displaced was counted %d times", n)
	}
	f.whole()
}

// TestNATFloodKeepsClients: that sessions of a VIP wait for trust is nothing to the flow table, which remembers the clients of the VIP. They do not give
// way to others because of a flood.
func TestNATFloodKeepsClients(t *testing.T) {
	f, clients := newClientsFixture(t)
	clients(false, 6*int(testLimits.Flows))
	totals, err := f.mux.Sweep()
	must(t, err)
	if len(totals.Over) != 1 || totals.Over[0].Table != "nat_untrusted" {
		t.Fatalf("over their share: %v", totals.Over)
	}
	clients(true, 100)
	clients(false, 100)
	if n := f.reasonsNow()["flow_displaced"]; n != 0 {
		t.Errorf("%d clients gave way", n)
	}
}

// newClientsFixture returns a mux with path nat that remembers clients, and a function that sends SYNs of so many other clients.
func newClientsFixture(t *testing.T) (f *natFixture, clients func(v6 bool, n int)) {
	endpoints := natServers()
	for i := range endpoints {
		endpoints[i].SourcePrefix4, endpoints[i].SourcePrefix6, endpoints[i].SourceFor = 32, 128, time.Minute
	}
	f = newNATFixture(t, endpoints...)
	next := 0
	return f, func(v6 bool, n int) {
		for range n {
			next++
			p := natPacket(v6, false, 1000, wire.SYN)
			client := p.Src.AsSlice()
			client[len(client)-2], client[len(client)-1] = byte(next>>8), byte(next)
			p.Src, _ = netip.AddrFromSlice(client)
			f.run(p.Frame())
		}
	}
}

// TestNATClientsShare: clients that a VIP with path nat remembers count in the flow table, where the marks of its sessions do not.
func TestNATClientsShare(t *testing.T) {
	f, _ := newClientsFixture(t)
	tables := f.mux.tables
	four, six := tables.entries[lb.EndpointKey{VIP: muxVIP4, Protocol: lb.TCP, Port: 80}], tables.entries[lb.EndpointKey{VIP: muxVIP6, Protocol: lb.TCP, Port: 80}]
	flows := make([]uint64, f.mux.memory.endpointCounts.size)
	flows[four.index], flows[six.index] = 400, 40
	over := tables.share(flows, nil, nil, 512)
	if want := (Share{lb.EndpointKey{VIP: muxVIP4}, "flows", 400, 216}); len(over) != 1 || over[0] != want {
		t.Errorf("over their share: %v, want %v", over, want)
	}
	for i := range four.block.words {
		at := four.block.first + i
		if marked := f.mux.memory.shareMarks[at/64]>>(at%64)&1 == 1; marked != (i != shareWaiting && i != shareSessions) {
			t.Errorf("member word %d of the VIP over its share of the flow table has a mark: %v", i, marked)
		}
	}
	if four.overSessions || six.over {
		t.Errorf("sessions of the VIP are over their share: %v; flows of the other VIP: %v", four.overSessions, six.over)
	}
}

// TestNATFloodOfPorts: where ports run out before sessions do, a newcomer gets that of a session which is not trusted.
func TestNATFloodOfPorts(t *testing.T) {
	one := natEndpoint(muxVIP4, lb.TCP, 80, "10.20.1.11")
	one.Idle = natIdle
	f := newNATFixture(t, one)
	f.from(NATAddress{natLIP4, 2000, 2015})
	l := &flooder{f: f}
	for from := range uint16(16) {
		l.many(40)
		c := f.talk(false, 1000+from)
		c.shake()
		if c.class() != "trusted" {
			t.Fatalf("connection %d is %q", from, c.class())
		}
	}
	before := f.reasonsNow()["nat_full"]
	l.one()
	if n := f.reasonsNow()["nat_full"]; n == before {
		t.Error("all ports are in use, and a newcomer got one")
	}
	f.sweep()
}

// TestNATFloodOfDatagrams: the client of a flow of UDP is believed when it goes on after the server's answer.
func TestNATFloodOfDatagrams(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	there := f.in(natPacket(false, true, 1000, 0))
	f.out(serverSays(*there.packet))
	f.in(natPacket(false, true, 1000, 0))
	for from := range uint16(400) {
		there := f.in(natPacket(false, true, 2000+from, 0))
		f.out(serverSays(*there.packet))
	}
	if n := f.untrusted(); n != int(testLimits.NAT)/2 || len(f.sessions) != n+1 {
		t.Errorf("%d of %d sessions are not trusted", n, len(f.sessions))
	}
	f.sweep()
}

// TestNATBeginsAnewInLine: a connection that takes the place of one that is over waits for trust like any other, and the port rests when it loses the place.
func TestNATBeginsAnewInLine(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	c := f.talk(false, 1000)
	c.shake()
	c.play(`
		> R 1 0 0 closing
		> S 5000 0 0 untrusted`)
	(&flooder{f: f}).many(int(testLimits.NAT) / 2)
	if port := (natPortOf{c.server, c.lip, 6}); c.class() != "" || !f.portThere(port) {
		t.Errorf("it is %q, its port is there: %v", c.class(), f.portThere(port))
	}
	f.sweep()
}

// TestNATFloodOfOneSession: a client that resets its connection and begins another one in the same session, again and again, displaces no other session.
func TestNATFloodOfOneSession(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	other, own := f.talk(true, 1000), f.talk(false, 1001)
	other.says(false, wire.SYN, 0, 0, 0)
	for range testLimits.NAT {
		own.play(`
			> S 0 0 0 untrusted
			> R 1 0 0 closing`)
	}
	if got := other.class(); got != "untrusted" {
		t.Errorf("the session of another client is %q", got)
	}
	f.sweep()
}

// TestNATBeginsAnewWithoutPlace: a connection that takes the place of a trusted one that is over is refused if it has no place among those that wait for trust,
// because others could not displace it. So is the answer of a server that began anew.
func TestNATBeginsAnewWithoutPlace(t *testing.T) {
	for _, server := range []bool{false, true} {
		f, _ := newSparingFixture(t, MuxOptions{}, 0)
		c := f.talk(false, 60000)
		c.shake()
		var talks []*natTalk
		for from := range uint16(128) { // of testLimits.NAT
			o := f.talk(true, 2000+from)
			o.says(false, wire.SYN, 0, 0, 0)
			talks = append(talks, o)
		}
		var got string
		if server {
			got = c.says(true, wire.SYN|wire.ACK, 70000, 1, 0).reason
		} else {
			c.says(false, wire.RST, 1, 0, 0)
			got = c.says(false, wire.SYN, 90000, 0, 0).reason
		}
		if got != "nat_full" || c.class() != "" {
			t.Errorf("server %v: a connection without a place is %q, its session %q", server, got, c.class())
		}
		for i, o := range talks {
			if o.class() != "untrusted" {
				t.Errorf("server %v: of sessions that are spared number %d is %q", server, i, o.class())
			}
		}
		if n := f.untrusted(); n > 128 {
			t.Errorf("server %v: %d sessions are untrusted", server, n)
		}
	}
}

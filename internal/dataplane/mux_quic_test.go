package dataplane

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/wire"
)

// quicKeys are two live configurations, of which one has the recommended lengths, which are one block.
var quicKeys = MuxQUIC{Format: cid.QUICLB, Configs: []cid.Config{
	{ID: 2, Key: [16]byte{1, 2, 3, 4, 5, 6, 7}, ServerID: 3, Nonce: 13}, {ID: 5, Key: [16]byte{9, 8, 7}, ServerID: 8, Nonce: 9},
}}

// quicEndpoint is an endpoint of udp port 443 by connection ids: what carries none is remembered for 30 s.
func quicEndpoint(set MuxQUIC, outers ...string) MuxEndpoint {
	e := endpointOf(muxVIP4, lb.UDP, 443, outers...)
	e.Affinity, e.QUIC, e.Idle = AffinityCookie, &set, lb.Idle{Untrusted: 30 * time.Second, Trusted: 300 * time.Second}
	return e
}

// quicFixture is a mux with such endpoints, its model, and clients.
type quicFixture struct {
	flowFixture
	e MuxEndpoint
	r *rand.Rand
}

func newQUICFixture(t *testing.T, set MuxQUIC) *quicFixture {
	e := quicEndpoint(set, threeServers...)
	return &quicFixture{newFlowFixture(t, e), e, seeded(t)}
}

// shortHeader and longHeader are packets: what is behind the header is any.
func shortHeader(dcid []byte) []byte {
	return append(append([]byte{0x40}, dcid...), make([]byte, 24)...)
}

func longHeader(first byte, dcid, scid []byte) []byte {
	b := append([]byte{first, 0, 0, 0, 1, byte(len(dcid))}, dcid...)
	b = append(append(b, byte(len(scid))), scid...)
	return append(b, make([]byte, 24)...)
}

// Types of long headers of version 1 (RFC 9000 section 17.2).
const (
	quicInitial   = 0xc0
	quicZeroRTT   = 0xd0
	quicHandshake = 0xe0
)

// quicPacket is a datagram from a port of a client.
func quicPacket(client netip.Addr, port uint16, datagram []byte) wire.Packet {
	p := udp4(443)
	p.Src = client
	p.Payload = wire.UDP{SrcPort: port, DstPort: 443, Data: datagram}
	return p
}

// send checks a datagram from a port of the usual client: the member it went to.
func (f *quicFixture) send(port uint16, datagram []byte) uint16 {
	f.t.Helper()
	return f.sendFrom(muxClient4, port, datagram)
}

func (f *quicFixture) sendFrom(client netip.Addr, port uint16, datagram []byte) uint16 {
	f.t.Helper()
	got := f.check(quicPacket(client, port, datagram).Frame())
	f.checkFlows()
	if got.reason != "forwarded" {
		f.t.Fatalf("datagram %x: %s", datagram, got.reason)
	}
	return got.member.Member
}

// id is a connection id of a member.
func (f *quicFixture) id(member uint16) []byte { return mint(f.e.QUIC, member, f.r) }

// weigh gives the endpoint a ring of these members; the others drain.
func (f *quicFixture) weigh(ids ...uint16) {
	f.t.Helper()
	f.e = withRing(f.e, ids...)
	f.to(f.e)
}

// withRing is an endpoint with a ring of these members; the others drain.
func withRing(e MuxEndpoint, ids ...uint16) MuxEndpoint {
	var members []ring.Member
	e.Members = append([]MuxMember(nil), e.Members...)
	for i := range e.Members {
		m := &e.Members[i]
		m.Choosable = false
		for _, id := range ids {
			if m.ID == id {
				m.Choosable = true
				members = append(members, ring.Member{ID: id, DIP: m.Outer, Port: 8080, Weight: 1})
			}
		}
	}
	e.Ring = ring.Build(e.RingCode, members)
	return e
}

// entries is the number of flows that Flows tells of.
func (f *quicFixture) entries() int {
	f.t.Helper()
	flows, err := f.mux.listFlows(f.e.Key, 1000)
	must(f.t, err)
	for _, fl := range flows {
		if fl.Class != FlowUntrusted {
			f.t.Fatalf("a flow is %v", fl.Class)
		}
	}
	return len(flows)
}

// counted is how often a reason was counted.
func (f *quicFixture) counted(reason string) uint64 {
	f.t.Helper()
	return f.reasonsNow()[reason]
}

// TestQUICFormats: packets with any header go to the member that their connection id names, whoever sends them; nothing is remembered.
func TestQUICFormats(t *testing.T) {
	for name, set := range map[string]MuxQUIC{
		"quiclb": quicKeys, "quiclb-plain": {Format: cid.Plain, Configs: []cid.Config{{ID: 0, ServerID: 3, Nonce: 4}, {ID: 6, ServerID: 2, Nonce: 17}}},
		"msquic": {Format: cid.MSQUIC}, "mvfst": {Format: cid.MVFST},
	} {
		t.Run(name, func(t *testing.T) {
			f := newQUICFixture(t, set)
			for i := range 120 {
				member := uint16(f.r.IntN(3))
				id := f.id(member)
				datagram := shortHeader(id)
				if i%2 == 0 {
					datagram = longHeader(byte(0x80|f.r.IntN(128)), id, id[:f.r.IntN(5)])
				} else {
					datagram[0] = byte(f.r.IntN(128)) // the fixed bit, and all that is protected
				}
				client := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
				if got := f.sendFrom(client, uint16(1000+i), datagram); got != member {
					t.Fatalf("%x went to member %d, expected %d", datagram, got, member)
				}
			}
			if n := f.entries(); n != 0 {
				t.Errorf("%d flows are remembered", n)
			}
		})
	}
}

// TestQUICMigration: from another address or port, with the same or a fresh id, and though another connection had them before, a connection stays with its server,
// which may drain and of which the ring knows nothing any more; so it does at another mux, and after a change of keys.
func TestQUICMigration(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	f.weigh(0)
	if got := f.send(1000, longHeader(quicInitial, make([]byte, 8), nil)); got != 0 {
		t.Fatalf("went to %d", got)
	}
	f.weigh(1, 2)
	id := f.id(0)
	for _, c := range []struct {
		name   string
		client netip.Addr
		port   uint16
		id     []byte
	}{
		{"at home", muxClient4, 1000, id}, {"another port", muxClient4, 1001, id}, {"another address, a fresh id", muxClient4.Next(), 2000, f.id(0)},
		{"a port that had another connection", muxClient4, 1002, id},
	} {
		if c.port == 1002 && f.send(1002, longHeader(quicInitial, make([]byte, 8), nil)) == 0 {
			t.Fatal("a new connection went to the member that drains")
		}
		if got := f.sendFrom(c.client, c.port, shortHeader(c.id)); got != 0 {
			t.Errorf("%s: went to member %d", c.name, got)
		}
	}
	rotated := quicKeys
	rotated.Configs = append([]cid.Config{{ID: 3, Key: [16]byte{7}, ServerID: 3, Nonce: 13}}, quicKeys.Configs[0])
	f.e.QUIC = &rotated
	f.to(f.e)
	if got := f.send(1003, shortHeader(id)); id[0]>>5 == 2 && got != 0 {
		t.Errorf("after a change of keys: went to member %d", got)
	}
	if got := f.send(1004, shortHeader(f.id(0))); got != 0 {
		t.Errorf("under new keys: went to member %d", got)
	}
}

// TestQUICFirstFlight: the packets of a connection that begins go to one server whatever the ring comes to say meanwhile: several Initials, 0-RTT, what is sent
// again. Another connection from the same socket is another one.
func TestQUICFirstFlight(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	dcid := []byte{0xe1, 2, 3, 4, 5, 6, 7, 8} // unroutable: what clients draw may name a member
	for _, scid := range [][]byte{nil, {1, 2, 3, 4}, make([]byte, 20)} {
		f.weigh(1)
		first := f.send(5000, longHeader(quicInitial, dcid, scid))
		f.weigh(0, 2)
		for _, kind := range []byte{quicInitial, quicZeroRTT, quicHandshake, quicInitial &^ 0x40} {
			if got := f.send(5000, longHeader(kind, dcid, scid)); got != first {
				t.Errorf("source %x: a packet %#x went to member %d, the first to %d", scid, kind, got, first)
			}
		}
		if got := f.send(5001, longHeader(quicInitial, dcid, scid)); got == 1 {
			t.Error("another socket's connection went to the member that drains")
		}
	}
	if got := f.send(5000, longHeader(quicInitial, dcid, []byte{5})); got == 1 {
		t.Error("another connection of the socket went to the member that drains")
	}
	if f.counted("quic_malformed")+f.counted("quic_unroutable")+f.counted("quic_invalid") != 0 {
		t.Errorf("counted as odd: %v", f.reasonsNow())
	}
}

// TestQUICUnroutable: a server that has no configuration writes ids that name nobody. Its packets go by addresses and ports, as long as they come at least every
// 30 s; what is forgotten, or was never seen, goes by the ring and leaves nothing behind.
func TestQUICUnroutable(t *testing.T) {
	for _, scid := range [][]byte{nil, {1, 2, 3}} {
		f := newQUICFixture(t, quicKeys)
		f.weigh(0)
		f.send(7000, longHeader(quicInitial, make([]byte, 8), scid))
		f.weigh(1, 2)
		id := append([]byte{0xff}, make([]byte, 16)...)
		for range 5 {
			f.pass(25 * time.Second)
			if got := f.send(7000, shortHeader(id)); got != 0 {
				t.Fatalf("source %x: went to member %d", scid, got)
			}
		}
		f.pass(35 * time.Second)
		if got := f.send(7000, shortHeader(id)); got == 0 {
			t.Errorf("source %x: remembered for too long", scid)
		}
		if n := f.counted("quic_unroutable"); n != 6 {
			t.Errorf("quic_unroutable is %d", n)
		}
		before := f.entries()
		for i := range 50 {
			f.send(uint16(8000+i), shortHeader(id))
		}
		if n := f.entries(); n != before {
			t.Errorf("%d flows were remembered", n-before)
		}
	}
}

// TestQUICServerIsGone: ids of a server that is dead, or gone, go by the flow table and the ring; alive again, it gets its packets back.
func TestQUICServerIsGone(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	id := f.id(1)
	f.setAlive(MemberAlive{f.e.Key, 1, false})
	if got := f.send(1000, shortHeader(id)); got == 1 || f.counted("flow_moved") != 1 {
		t.Errorf("went to member %d, flow_moved %d", got, f.counted("flow_moved"))
	}
	f.setAlive(MemberAlive{f.e.Key, 1, true})
	if got := f.send(1000, shortHeader(id)); got != 1 {
		t.Errorf("went to member %d", got)
	}
	nobody := f.id(7)
	if f.send(1000, shortHeader(nobody)); f.counted("quic_invalid") != 1 {
		t.Errorf("quic_invalid is %d", f.counted("quic_invalid"))
	}
	if f.send(1000, longHeader(quicInitial, nobody, nil)); f.counted("quic_invalid") != 1 || f.entries() != 1 {
		t.Errorf("quic_invalid is %d, %d flows", f.counted("quic_invalid"), f.entries())
	}
	f.e.Members, f.e.Ring = f.e.Members[:1], withRing(f.e, 0).Ring
	f.to(f.e)
	if got := f.send(1000, shortHeader(id)); got != 0 {
		t.Errorf("went to member %d", got)
	}
}

// quicOdd are datagrams without a header that can be read, and some that look odd but can.
func quicOdd(id []byte) map[string][]byte {
	long := longHeader(quicInitial, id, []byte{1, 2, 3})
	beyond, source := clone(long), clone(long)
	beyond[5] = 21
	source[6+len(id)] = 21
	return map[string][]byte{
		"empty": {}, "a flag": {0x40}, "half an id": shortHeader(id)[:9], "DTLS 1.2": append([]byte{22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 40}, make([]byte, 40)...),
		"a long flag": {0xc0}, "half a version": long[:4], "no lengths": long[:5], "half a destination": long[:15], "no source": long[:6+len(id)],
		"half a source": long[:6+len(id)+3], "a destination of 21": beyond, "a source of 21": source, "a length beyond all": {0xc0, 0, 0, 0, 1, 20, 1, 2},
		"two packets": append(clone(long), shortHeader(make([]byte, 17))...), "just an id": shortHeader(id)[:18],
	}
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

// TestQUICOddDatagrams: program and model agree on verdict, bytes, counters and flow table, of every length that such datagrams may be cut to.
func TestQUICOddDatagrams(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	for name, datagram := range quicOdd(f.id(1)) {
		t.Run(name, func(t *testing.T) {
			f.t = t
			f.send(4000, datagram)
		})
	}
	whole := longHeader(quicInitial, f.id(2), []byte{1, 2, 3, 4, 5})
	for n := range whole {
		f.send(uint16(4001+n), whole[:n])
		short := shortHeader(f.id(0))
		f.send(uint16(4001+n), short[:min(n, len(short))])
	}
	if f.counted("quic_malformed") < 20 {
		t.Errorf("quic_malformed is %d", f.counted("quic_malformed"))
	}
}

// TestQUICOver6: the same by IPv6, to a range of ports, under GUE.
func TestQUICOver6(t *testing.T) {
	e := endpointOf(muxVIP6, lb.UDP, 400, "2001:db8:20:1::11", "2001:db8:20:2::11", "10.20.3.11")
	e.Key.PortEnd, e.Encap, e.Affinity, e.QUIC = 499, EncapGUE, AffinityCookie, &quicKeys
	f := &quicFixture{newFlowFixture(t, e), e, seeded(t)}
	for i := range 60 {
		member := uint16(i % 3)
		p := udp6(443)
		p.Payload = wire.UDP{SrcPort: uint16(i), DstPort: uint16(400 + i), Data: shortHeader(f.id(member))}
		if i%4 == 3 {
			p.Extensions = []wire.Extension{wire.Options(wire.ProtoDstOpts, 3)}
		}
		if got := f.check(p.Frame()); got.member == nil || got.member.Member != member {
			t.Fatalf("packet %d: %+v, expected member %d", i, got, member)
		}
	}
}

// TestQUICFragments: the first fragment goes by its id, the others follow it.
func TestQUICFragments(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	for member := range uint16(3) {
		p := quicPacket(muxClient4, 6000, append(shortHeader(f.id(member)), make([]byte, 100)...))
		p.ID = 100 + member
		whole := p.Frame()
		first, last := clone(whole[:14+20+8+64]), clone(whole[:14+20])
		last = append(last, whole[14+20+72:]...)
		for i, frame := range [][]byte{first, last} {
			with(frame, func(b []byte) {
				binary.BigEndian.PutUint16(b[16:], uint16(len(b)-14))
				binary.BigEndian.PutUint16(b[20:], []uint16{0x2000, 9}[i])
			})
			if got := f.check(frame); got.member == nil || got.member.Member != member {
				t.Fatalf("fragment %d: %+v, expected member %d", i, got, member)
			}
		}
	}
}

// TestQUICErrors: ICMP errors go by the addresses and ports that they quote: the client's id is in what they quote, which says nothing.
func TestQUICErrors(t *testing.T) {
	for _, scid := range [][]byte{nil, {1, 2, 3, 4}} {
		f := newQUICFixture(t, quicKeys)
		f.weigh(2)
		f.send(9000, longHeader(quicInitial, make([]byte, 8), scid))
		f.weigh(0, 1)
		quoted := tcp4(443)
		quoted.Src, quoted.Dst = quoted.Dst, quoted.Src
		quoted.Payload = wire.UDP{SrcPort: 443, DstPort: 9000, Data: shortHeader(scid)}
		body := append([]byte{3, 4, 0, 0, 0, 0, 5, 0}, quoted.Frame()[14:]...)
		binary.BigEndian.PutUint16(body[2:], wire.Checksum(body))
		p := tcp4(0)
		p.Payload = wire.Raw{Number: wire.ProtoICMP, Data: body}
		if got := f.check(p.Frame()); got.member == nil || got.member.Member != 2 {
			t.Errorf("source %x: %+v, expected member 2", scid, got)
		}
	}
}

// TestQUICFlood: first packets with any addresses and ids take at most half of what the flow table has, and none that is trusted.
func TestQUICFlood(t *testing.T) {
	tcp := flowEndpoint(80, threeServers...)
	quic := quicEndpoint(quicKeys, threeServers...)
	f := &quicFixture{newFlowFixture(t, tcp, quic), quic, seeded(t)}
	for port := range uint16(40) {
		f.flowFixture.send(port, wire.SYN)
		f.flowFixture.send(port, wire.ACK)
	}
	for range 3000 {
		id, source := make([]byte, 8), make([]byte, f.r.IntN(5))
		for i := range id {
			id[i] = byte(f.r.Uint32())
		}
		p := quicPacket(netip.AddrFrom4([4]byte{198, byte(f.r.Uint32()), 1, 1}), uint16(f.r.Uint32()), longHeader(quicInitial, id, source))
		f.check(p.Frame())
	}
	f.checkFlows()
	for i, b := range f.model.flows.buckets {
		untrusted := 0
		for _, g := range b {
			if g.class == FlowUntrusted {
				untrusted++
			}
		}
		if untrusted > int(muxLimitLIMIT_FLOW_UNTRUSTED) {
			t.Errorf("bucket %d holds %d untrusted flows", i, untrusted)
		}
	}
	flows, err := f.mux.listFlows(tcp.Key, 1000)
	must(t, err)
	if len(flows) != 40 {
		t.Errorf("%d of 40 trusted flows are left", len(flows))
	}
}

// TestQUICNewFlowLimit: what opens a connection takes a token, what goes on does not.
func TestQUICNewFlowLimit(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	f.setNow(1 << 32) // limits count in 2^-24 jiffies
	s := MuxState{
		RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{f.e},
		VIPs: []MuxVIP{{VIP: muxVIP4, Limits: lb.Limits{Connections: 1}}},
	}
	f.apply(s)
	refused := 0
	for i := range uint16(40) {
		p := quicPacket(muxClient4, 3000+i, longHeader(quicInitial, []byte{0xe0, byte(i), 0, 0, 0, 0, 0, 0}, []byte{byte(i)}))
		for range 3 {
			if got := f.check(p.Frame()); got.reason == "new_flow_limited" {
				refused++
			}
		}
		f.send(3000+i, shortHeader(f.id(1)))
		f.send(9000+i, shortHeader([]byte{0xff}))
	}
	if refused != 24*3 {
		t.Errorf("%d packets were refused, expected those of 24 connections", refused)
	}
}

// TestQUICKeysAreForgotten: what an endpoint gave up holds no key; what has no room is refused, and the endpoint stays as it was.
func TestQUICKeysAreForgotten(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	used := func() (n int) {
		for i := range f.mux.memory.quicSets {
			if f.mux.memory.quicSets[i] != (muxQuicSet{}) {
				n++
			}
		}
		return n
	}
	for i := range 50 {
		set := quicKeys
		set.Configs = append([]cid.Config(nil), quicKeys.Configs...)
		set.Configs[0].Key[0] = byte(i + 100)
		f.e.QUIC = &set
		f.to(f.e)
		if n := used(); n != 1 {
			t.Fatalf("%d records hold keys", n)
		}
	}
	plain := f.e
	plain.QUIC, plain.Affinity = nil, AffinityFlow
	f.to(plain)
	if n := used(); n != 0 || f.mux.tables.quic.endpoints != 0 {
		t.Errorf("%d records hold keys, %d endpoints have one", n, f.mux.tables.quic.endpoints)
	}
	s := MuxState{RingKeys: testKeys, TunnelSources: sources}
	for i := range testLimits.QUIC + 1 {
		e := quicEndpoint(quicKeys, threeServers...)
		e.Key.Port = uint16(443 + i)
		s.Endpoints = append(s.Endpoints, e)
	}
	err := f.mux.Apply(s)
	if err == nil || err.Error() != "apply tables: QUIC endpoints: 9: at most 8 (--max-quic-endpoints)" {
		t.Errorf("nine endpoints: %v", err)
	}
	s.Endpoints = s.Endpoints[1:]
	f.apply(s)
	for i := range s.Endpoints { // all at once: there is as much room again
		set := quicKeys
		set.Configs = set.Configs[:1]
		s.Endpoints[i].QUIC = &set
	}
	f.apply(s)
	if n := used(); n != int(testLimits.QUIC) {
		t.Errorf("%d records hold keys", n)
	}
}

// TestQUICRefused: endpoints of which connection ids could not be read.
func TestQUICRefused(t *testing.T) {
	f := newMuxFixture(t)
	for _, c := range []struct {
		change func(*MuxEndpoint)
		want   string
	}{
		{func(e *MuxEndpoint) { e.Key.Protocol = lb.TCP }, "QUIC: with protocol tcp: must be udp"},
		{func(e *MuxEndpoint) { e.Affinity = AffinityFlow }, "QUIC: must have affinity cookie"},
		{func(e *MuxEndpoint) { e.OnePacket = true }, "QUIC: not with one packet, fragments by three values, or source affinity"},
		{func(e *MuxEndpoint) { e.Fragments3Tuple = true }, "QUIC: not with one packet, fragments by three values, or source affinity"},
		{func(e *MuxEndpoint) { e.SourcePrefix4 = 24 }, "QUIC: not with one packet, fragments by three values, or source affinity"},
		{func(e *MuxEndpoint) { e.QUIC = &MuxQUIC{Format: 9} }, "QUIC: format 9: must be 1 to 4"},
	} {
		e := quicEndpoint(quicKeys, threeServers...)
		c.change(&e)
		err := f.mux.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{e}})
		if want := fmt.Sprintf("apply tables: endpoint %v: %s", e.Key, c.want); err == nil || err.Error() != want {
			t.Errorf("%v, expected %s", err, want)
		}
	}
}

// TestQUICTrace: a trace tells the member, the outer header that the program writes, and why.
func TestQUICTrace(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	id := f.id(1)
	gone := f.id(9)
	for _, c := range []struct {
		name string
		cid  []byte
		want string
	}{
		{"named", id, fmt.Sprintf("connection id %x of configuration %d, read by %s, names member 1", id, id[0]>>5, map[byte]string{2: "one block", 5: "four passes"}[id[0]>>5])},
		{"nobody", gone, "member 9 is gone: the flow table and the ring are asked"},
		{"unroutable", []byte{0xe5, 1}, "connection id e501 names no member: its server had no configuration (0b111)"},
		{"another configuration", []byte{0x05, 1}, "connection id 0501 names no member: its configuration is not live here"},
		{"short", id[:9], fmt.Sprintf("connection id %x names no member: it is too short", id[:9])},
		{"without octets", []byte{}, "connection id  names no member: it has no octets"},
		{"first", nil, "without a connection id it is the first packet of a connection, whose id is the client's"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.UDP, ClientPort: 4242, Port: 443, Segment: SegmentLater, CID: c.cid}
			got, err := f.mux.Trace(p)
			must(t, err)
			if !slices.Contains(got.Steps, c.want) {
				t.Errorf("%q is not in %q", c.want, got.Steps)
			}
			datagram := append([]byte{0x40}, c.cid...)
			if c.name == "named" {
				datagram = shortHeader(c.cid)
			}
			if c.cid == nil {
				datagram = longHeader(quicInitial, []byte{0xff}, nil)
			}
			_, out := f.run(quicPacket(muxClient4, 4242, datagram).Frame())
			if src, dst := netip.AddrFrom4([4]byte(out[26:30])), netip.AddrFrom4([4]byte(out[30:34])); src != got.Source || dst != got.Outer {
				t.Errorf("sent from %v to %v, the trace says %v to %v", src, dst, got.Source, got.Outer)
			}
		})
	}
}

package dataplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/wire"
)

var (
	natLIP4  = netip.MustParseAddr("10.10.0.211")
	natLIP6  = netip.MustParseAddr("2001:db8:10::d3")
	natPorts = []NATAddress{{natLIP4, 1024, 65535}, {natLIP6, 1024, 65535}}
)

// natFlow is a flow as its client sees it.
type natFlow struct {
	client, vip netip.AddrPort
	protocol    uint8
}

// natPortOf is one end of a flow as its server sees it.
type natPortOf struct {
	server, lip netip.AddrPort
	protocol    uint8
}

// natFixture is a mux of path nat and the naive model of it: maps, and packets that are made anew.
type natFixture struct {
	*muxFixture
	addresses []NATAddress
	natModel
}

func newNATFixture(t testing.TB, endpoints ...MuxEndpoint) *natFixture {
	return newNATFixtureWith(t, MuxOptions{}, endpoints...)
}

// newNATFixtureWith loads with these options.
func newNATFixtureWith(t testing.TB, o MuxOptions, endpoints ...MuxEndpoint) *natFixture {
	f := &natFixture{muxFixture: newMuxFixtureWith(t, o), natModel: newNATModel()}
	f.serve(endpoints...)
	f.from(natPorts...)
	f.at(1 << 20)
	return f
}

// at sets the time.
func (f *natFixture) at(tick uint64) {
	f.t.Helper()
	f.tick = tick
	f.setJiffies(tick << f.mux.tickShift)
}

// serve applies endpoints.
func (f *natFixture) serve(endpoints ...MuxEndpoint) {
	f.t.Helper()
	s := MuxState{RingKeys: testKeys, Endpoints: endpoints}
	f.apply(s)
	f.setHops(hopsTo(s))
}

// from sets the addresses.
func (f *natFixture) from(addresses ...NATAddress) {
	f.t.Helper()
	must(f.t, f.mux.SetNATAddresses(addresses))
	f.addresses = addresses
	for flow, s := range f.sessions {
		if !slices.ContainsFunc(addresses, func(a NATAddress) bool { return a.Addr == s.lip.Addr() }) {
			f.end(flow)
		}
	}
}

// natWant is what shall become of a packet: nil for a drop, or unchanged.
type natWant struct {
	reason string
	packet *wire.Packet
	pass   bool
	noted  []string
}

// endsOf are the addresses and ports of a packet.
func endsOf(p wire.Packet) (src, dst netip.AddrPort, protocol, flags uint8) {
	switch l4 := p.Payload.(type) {
	case wire.TCP:
		return netip.AddrPortFrom(p.Src, l4.SrcPort), netip.AddrPortFrom(p.Dst, l4.DstPort), 6, l4.Flags
	case wire.UDP:
		return netip.AddrPortFrom(p.Src, l4.SrcPort), netip.AddrPortFrom(p.Dst, l4.DstPort), 17, 0
	}
	panic("a packet without ports")
}

// readdressed is a packet with other ends, one hop on.
func readdressed(p wire.Packet, src, dst netip.AddrPort) wire.Packet {
	p.Src, p.Dst, p.Padding = src.Addr(), dst.Addr(), 0
	if p.TTL == 0 {
		p.TTL = 64
	}
	p.TTL--
	switch l4 := p.Payload.(type) {
	case wire.TCP:
		l4.SrcPort, l4.DstPort = src.Port(), dst.Port()
		p.Payload = l4
	case wire.UDP:
		l4.SrcPort, l4.DstPort = src.Port(), dst.Port()
		p.Payload = l4
	}
	return p
}

// endpointFor is the endpoint of a destination.
func (f *natFixture) endpointFor(vip netip.AddrPort, protocol uint8) *MuxEndpoint {
	for i, e := range f.model.state.Endpoints {
		high := max(e.Key.PortEnd, e.Key.Port)
		if e.Key.VIP == vip.Addr() && uint8(e.Key.Protocol) == protocol && vip.Port() >= e.Key.Port && vip.Port() <= high {
			return &f.model.state.Endpoints[i]
		}
	}
	return nil
}

// memberOf is a member by its id.
func natMember(e *MuxEndpoint, id uint16) *MuxMember {
	for i := range e.Members {
		if e.Members[i].ID == id {
			return &e.Members[i]
		}
	}
	return nil
}

// serverOf is where packets to a port of the VIP go at a member.
func serverOf(m *MuxMember, vport uint16) netip.AddrPort {
	if m.Port != 0 {
		vport = m.Port
	}
	return netip.AddrPortFrom(m.Outer, vport)
}

// alive says whether a member is there and alive.
func (f *natFixture) alive(e *MuxEndpoint, id uint16) bool {
	return natMember(e, id) != nil && f.model.alive[MemberKey{e.Key, id}]
}

// natTimestampsAt is where the timestamps of options are, by the walk of RFC 9293; -1: there are none.
func natTimestampsAt(options []byte) int {
	for i := 0; i < len(options) && options[i] != 0; {
		if options[i] == 1 {
			i++
			continue
		}
		if i+1 >= len(options) || options[i+1] < 2 || i+int(options[i+1]) > len(options) {
			return -1
		}
		if options[i] == 8 && options[i+1] == 10 {
			return i + 2
		}
		i += int(options[i+1])
	}
	return -1
}

// stampOf is word `which` (0 the value, 1 the echo) of a packet's timestamps.
func stampOf(p wire.Packet, which int) (at int, value uint32) {
	l4, ok := p.Payload.(wire.TCP)
	if !ok {
		return -1, 0
	}
	if at = natTimestampsAt(l4.Options); at < 0 {
		return -1, 0
	}
	at += 4 * which
	return at, binary.BigEndian.Uint32(l4.Options[at:])
}

// restamped is a packet with another word in its options.
func restamped(p wire.Packet, at int, value uint32) wire.Packet {
	l4 := p.Payload.(wire.TCP)
	l4.Options = slices.Clone(l4.Options)
	binary.BigEndian.PutUint32(l4.Options[at:], value)
	p.Payload = l4
	return p
}

// byCookie is the member that a packet's cookie names, or the reason that counts that there is none.
func (f *natFixture) byCookie(e *MuxEndpoint, p wire.Packet, flow natFlow) (id uint16, counted string) {
	at, echo := stampOf(p, 1)
	if at < 0 || echo == 0 || p.Payload.(wire.TCP).Flags&wire.ACK == 0 {
		return 0, "cookie_absent"
	}
	carried := uint16(cookie.SplitBits.Cookie(echo))
	kid := cookie.ShortKeyID(carried)
	id, ok := cookie.DecodeShort(f.prf(e, kid, flow), carried, e.Cookie.secret(kid))
	switch {
	case !ok || !e.Cookie.Live[kid] || natMember(e, id) == nil:
		return 0, "cookie_invalid"
	case !f.alive(e, id) && !e.KeepDead:
		return 0, "flow_moved"
	}
	return id, ""
}

func (f *natFixture) prf(e *MuxEndpoint, kid uint8, flow natFlow) uint64 {
	return cookie.PRF(e.Cookie.Keys[kid], cookie.Flow{Client: flow.client, VIP: flow.vip})
}

// toServer says what becomes of a client's packet.
func (f *natFixture) toServer(p wire.Packet) (w natWant) {
	f.noted = nil
	defer func() { w.noted = f.noted }()
	src, dst, protocol, flags := endsOf(p)
	e, flow := f.endpointFor(dst, protocol), natFlow{src, dst, protocol}
	if p.TTL == 1 {
		return natWant{reason: "ttl_expired"}
	}
	s := f.sessions[flow]
	if s != nil {
		m, word := natMember(e, s.member), f.alive(e, s.member) || e.KeepDead && natMember(e, s.member) != nil && (protocol != 6 || flags&(wire.SYN|wire.RST) != wire.SYN)
		ok := word && serverOf(m, dst.Port()) == s.server
		if ok && protocol == 6 && flags&wire.SYN != 0 && s.over() && !m.Choosable {
			ok = false
		}
		if !ok {
			if flags&wire.SYN == 0 {
				f.note("flow_moved")
			}
			f.leave(flow)
			s = nil
		}
	}
	if s == nil {
		if w.reason = f.open(e, p, flow); w.reason != "" {
			return w
		}
		s = f.sessions[flow]
	}
	s.touched = f.tick
	out := readdressed(p, s.lip, s.server)
	out.DstMAC, out.SrcMAC = muxRouter, testMAC(ingress)
	if !f.clientSays(flow, s, p) {
		return natWant{reason: "nat_full"}
	}
	if at, echo := stampOf(p, 1); s.stamps && at >= 0 && echo != 0 {
		value := uint32(0)
		if s.restores && s.clock && flags&wire.ACK != 0 {
			for value = s.newest; cookie.SplitBits.Unplace(cookie.SplitBits.Place(value, 7)) != cookie.SplitBits.Unplace(echo); {
				value--
			}
		}
		out = restamped(out, at, value)
	}
	w.reason, w.packet = "forwarded", &out
	return w
}

// toClient says what becomes of a server's packet.
func (f *natFixture) toClient(p wire.Packet) (w natWant) {
	f.noted = nil
	defer func() { w.noted = f.noted }()
	src, dst, protocol, _ := endsOf(p)
	flow, ok := f.ports[natPortOf{src, dst, protocol}]
	if !ok && slices.ContainsFunc(f.addresses, func(a NATAddress) bool { return a.Addr == dst.Addr() }) {
		return natWant{reason: "nat_unknown"}
	}
	if !ok {
		return natWant{reason: "pass_not_ours", pass: true}
	}
	if p.TTL == 1 {
		return natWant{reason: "ttl_expired"}
	}
	s := f.sessions[flow]
	s.touched = f.tick
	if !f.serverSays(flow, s, p) {
		return natWant{reason: "nat_full"}
	}
	out := readdressed(p, flow.vip, flow.client)
	out.DstMAC, out.SrcMAC = muxRouter, muxSelf
	if at, value := stampOf(p, 0); s.stamps && at >= 0 {
		if !s.clock || int32(value-s.newest) > 0 {
			s.clock, s.newest = true, value
		}
		out = restamped(out, at, cookie.SplitBits.Place(value, uint32(s.cookie)))
	}
	return natWant{reason: "nat_replied", packet: &out}
}

// checkNAT runs a frame and compares verdict, bytes and counted reasons.
func (f *natFixture) checkNAT(frame []byte, want natWant) []byte {
	f.t.Helper()
	before := f.reasonsNow()
	verdict, out := f.run(frame)
	wantVerdict, wantOut := uint32(1), frame
	switch {
	case want.packet != nil:
		wantVerdict, wantOut = 3, frameOf(*want.packet)
	case want.pass:
		wantVerdict = 2
	}
	if verdict != wantVerdict || !bytes.Equal(out, wantOut) {
		f.t.Fatalf("frame %x:\ngot  verdict %d, %x\nwant verdict %d, %x (%s), counted %v", frame, verdict, out, wantVerdict, wantOut, want.reason, f.countedSince(before))
	}
	counted := slices.Sorted(slices.Values(append(slices.Clone(want.noted), want.reason)))
	if got := f.countedSince(before); !slices.Equal(got, counted) {
		f.t.Fatalf("frame %x: counted %v, want %v", frame, got, counted)
	}
	return out
}

// frameOf is the frame of a packet as the mux writes it: of the two zeros that are one sum, its checksums are 0xffff.
func frameOf(p wire.Packet) []byte {
	frame := p.Frame()
	if l4, ok := p.Payload.(wire.TCP); ok {
		at := len(frame) - p.Padding - len(l4.Bytes(p.Src, p.Dst)) + 16
		if frame[at] == 0 && frame[at+1] == 0 {
			frame[at], frame[at+1] = 0xff, 0xff
		}
	}
	return frame
}

// keyOf is the key of a flow.
func keyOf(flow natFlow) muxNatKey {
	key := muxNatKey{Sport: flow.client.Port(), Dport: flow.vip.Port(), Protocol: flow.protocol}
	key.SrcHi, key.SrcLo = storedHalves(flow.client.Addr())
	key.DstHi, key.DstLo = storedHalves(flow.vip.Addr())
	return key
}

// sessionOf is the session of a flow in the table.
func (f *natFixture) sessionOf(flow natFlow) (s muxNatSession, ok bool) {
	key := keyOf(flow)
	return s, f.mux.objects.NatSessions.Lookup(&key, &s) == nil
}

// countedSince are the reasons that were counted, each as often.
func (f *natFixture) countedSince(before map[string]uint64) (counted []string) {
	for name, n := range f.reasonsNow() {
		for range n - before[name] {
			counted = append(counted, name)
		}
	}
	slices.Sort(counted)
	return counted
}

// in gives the mux a client's packet, and is what the server gets.
func (f *natFixture) in(p wire.Packet) natWant {
	f.t.Helper()
	want := f.toServer(p)
	f.checkNAT(p.Frame(), want)
	return want
}

// out gives the mux a server's packet, and is what the client gets.
func (f *natFixture) out(p wire.Packet) natWant {
	f.t.Helper()
	want := f.toClient(p)
	f.checkNAT(p.Frame(), want)
	return want
}

// natISN is the number of the SYN of servers.
const natISN = 0xfffffff0

// serverSays is a server's first packet back to where one came from.
func serverSays(p wire.Packet) wire.Packet {
	_, _, last := numbersOf(p)
	p = answerTo(p)
	if l4, ok := p.Payload.(wire.TCP); ok {
		l4.Seq, l4.Ack = natISN, last
		p.Payload = l4
	}
	p.DstMAC, p.SrcMAC, p.TTL = muxSelf, muxRouter, 0
	return p
}

// sweep sweeps model and mux, and compares what is left.
func (f *natFixture) sweep() FlowTotals {
	f.t.Helper()
	want := FlowTotals{ByClass: map[FlowClass]uint64{}, Members: map[MemberKey]uint64{}}
	for flow, s := range f.sessions {
		e := f.endpointFor(flow.vip, flow.protocol)
		idle := time.Duration(0)
		switch {
		case s.over() && e != nil:
			idle = max(e.Idle.Untrusted, natRest)
		case s.over():
			idle = natRest
		case e != nil && s.trusted:
			idle = e.Idle.Trusted
		case e != nil:
			idle = e.Idle.Untrusted
		}
		if e == nil && !s.over() || f.tick-s.touched > uint64(f.mux.tables.ticks(idle)) {
			want.Expired++
			f.end(flow)
			continue
		}
		if e == nil {
			want.ByClass[s.class()]++
			continue
		}
		want.ByClass[s.class()]++
		want.Members[MemberKey{e.Key, s.member}]++
	}
	f.rest(uint64(f.mux.tables.ticks(natRest)))
	got, err := f.mux.Sweep()
	must(f.t, err)
	if got.Expired != want.Expired || !mapsEqual(got.ByClass, want.ByClass) || !mapsEqual(got.Members, want.Members) {
		f.t.Fatalf("sweep: %+v, want %+v", got, want)
	}
	f.floods = map[netip.Addr]bool{}
	for _, s := range got.Over {
		if s.Table == "nat_untrusted" {
			f.floods[s.VIP.VIP] = true
		}
	}
	f.compareTables()
	return got
}

func mapsEqual[K comparable](a, b map[K]uint64) bool {
	for k, n := range a {
		if b[k] != n {
			return false
		}
	}
	for k, n := range b {
		if a[k] != n {
			return false
		}
	}
	return true
}

// compareTables compares all sessions and ports with the model's.
func (f *natFixture) compareTables() {
	f.t.Helper()
	sessions := 0
	_, err := f.mux.eachSession(context.Background(), func(k muxNatKey, got *muxNatSession) bool {
		sessions++
		flow := natFlow{
			netip.AddrPortFrom(ofHalves(k.SrcHi, k.SrcLo), k.Sport), netip.AddrPortFrom(ofHalves(k.DstHi, k.DstLo), k.Dport), k.Protocol,
		}
		s := f.sessions[flow]
		if s == nil {
			f.t.Fatalf("session of %v: there should be none", flow)
		}
		lip, dip := netip.AddrPortFrom(ofHalves(got.LipHi, got.LipLo), got.Lport), netip.AddrPortFrom(ofHalves(got.DipHi, got.DipLo), got.Dport)
		if lip != s.lip || dip != s.server || got.Member != s.member || got.class() != s.class() {
			f.t.Fatalf("session of %v: %v to %v, member %d, %v: want %+v", flow, lip, dip, got.Member, got.class(), s)
		}
		return true
	})
	must(f.t, err)
	if sessions != len(f.sessions) {
		f.t.Fatalf("%d sessions, want %d", sessions, len(f.sessions))
	}
	var port muxNatKey
	var name muxNatName
	n, it := 0, f.mux.objects.NatPorts.Iterate()
	for it.Next(&port, &name) {
		n++
	}
	must(f.t, it.Err())
	alone, err := f.mux.portsAlone()
	must(f.t, err)
	if n != len(f.sessions)+len(f.resting) || len(f.ports) != len(f.sessions) || len(alone) != len(f.resting) {
		f.t.Fatalf("%d ports of %d sessions, %d alone, %d should rest", n, len(f.sessions), len(alone), len(f.resting))
	}
}

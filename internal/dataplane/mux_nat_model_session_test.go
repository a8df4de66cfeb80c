package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/wire"
)

// natModelSide is what the model knows of one side's sequence numbers.
type natModelSide struct {
	acked, end, fin uint32
	finishing, done bool
}

// natSession is what the model remembers of a flow.
type natSession struct {
	endpoint                    lb.EndpointKey
	member                      uint16
	lip, server                 netip.AddrPort
	answered, trusted, wasReset bool
	numbered                    bool
	isn                         uint32
	fromClient, fromServer      natModelSide
	stamps, restores, clock     bool
	newest                      uint32
	cookie                      uint16
	touched                     uint64 // tick
	number                      int
	rests                       bool // a connection before this one was over
}

// natWaiting is a session that began.
type natWaiting struct {
	flow   natFlow
	number int
}

// natModel are sessions and ports, as lists and maps.
type natModel struct {
	sessions map[natFlow]*natSession
	ports    map[natPortOf]natFlow
	resting  map[natPortOf]uint64 // ports of no session: tick of the sweep that saw it first, 0: none did
	waiting  []natWaiting         // the oldest first
	number   int
	noted    []string // of the packet in work
	tick     uint64
	over     map[netip.Addr]bool // VIPs over their share: they get no new sessions
	floods   map[netip.Addr]bool // and over that of sessions that wait for trust
}

func newNATModel() natModel {
	return natModel{sessions: map[natFlow]*natSession{}, ports: map[natPortOf]natFlow{}, resting: map[natPortOf]uint64{}}
}

func (f *natModel) note(reason string) { f.noted = append(f.noted, reason) }

// over says whether a session's connection is over.
func (s *natSession) over() bool { return s.wasReset || s.fromClient.done && s.fromServer.done }

// class is what the mux should know of a session.
func (s *natSession) class() FlowClass {
	switch {
	case s.over():
		return FlowClosing
	case s.trusted:
		return FlowTrusted
	}
	return FlowUntrusted
}

// end forgets a session. Its port rests if a connection before was over.
func (f *natModel) end(flow natFlow) {
	s := f.sessions[flow]
	if s.rests {
		f.resting[natPortOf{s.server, s.lip, flow.protocol}] = 0
	}
	delete(f.sessions, flow)
	delete(f.ports, natPortOf{s.server, s.lip, flow.protocol})
}

// leave forgets a session; the port of a connection that is over rests.
func (f *natModel) leave(flow natFlow) {
	s := f.sessions[flow]
	f.end(flow)
	if s.over() {
		f.resting[natPortOf{s.server, s.lip, flow.protocol}] = 0
	}
}

// rest follows a sweep of ports.
func (f *natModel) rest(ticks uint64) {
	for port, since := range f.resting {
		switch {
		case since == 0:
			f.resting[port] = f.tick
		case f.tick-since > ticks:
			delete(f.resting, port)
		}
	}
}

// displace ends the oldest session that began if it is not trusted, for one of a VIP; more is false when there is none.
func (f *natModel) displace(newcomer netip.Addr) (ended, more bool) {
	if len(f.waiting) == 0 {
		return false, false
	}
	oldest := f.waiting[0]
	f.waiting = f.waiting[1:]
	if s := f.sessions[oldest.flow]; s != nil && s.number == oldest.number && !s.trusted {
		if f.spares(newcomer, oldest.flow) {
			f.waiting = append(f.waiting, oldest)
			return false, true
		}
		f.end(oldest.flow)
		f.note("nat_displaced")
		return true, true
	}
	return false, true
}

// spares says whether a newcomer of a VIP must not end the session of a flow.
func (f *natModel) spares(newcomer netip.Addr, of natFlow) bool {
	return f.floods[newcomer] && !f.floods[of.vip.Addr()]
}

// wait numbers a session, and puts it behind those that began. Without a place it ends the session, and returns false.
func (f *natModel) wait(flow natFlow, s *natSession) bool {
	f.number++
	s.number = f.number
	for range int(muxNatLimitLIMIT_NAT_TRIES) {
		if len(f.waiting) < int(testLimits.NAT)/2 {
			f.waiting = append(f.waiting, natWaiting{flow, s.number})
			return true
		}
		f.displace(flow.vip.Addr())
	}
	if len(f.waiting) == int(testLimits.NAT)/2 {
		f.end(flow)
		return false
	}
	f.waiting = append(f.waiting, natWaiting{flow, s.number})
	return true
}

// numbersOf are the numbers of a segment: of its first octet, what it acknowledges, and behind its last octet.
func numbersOf(p wire.Packet) (seq, ack, last uint32) {
	l4, ok := p.Payload.(wire.TCP)
	if !ok {
		return 0, 0, 0
	}
	last = l4.Seq + uint32(len(l4.Data))
	for _, flag := range []uint8{wire.SYN, wire.FIN} {
		if l4.Flags&flag != 0 {
			last++
		}
	}
	return l4.Seq, l4.Ack, last
}

// open makes a session: a reason when it cannot.
func (f *natFixture) open(e *MuxEndpoint, p wire.Packet, flow natFlow) string {
	_, _, _, flags := endsOf(p)
	if flow.protocol == 6 && flags&wire.RST != 0 {
		return "nat_unknown"
	}
	first := flow.protocol != 6 || flags&wire.SYN != 0
	id, counted := uint16(0), "no cookie"
	if !first && e.Cookie != nil {
		if id, counted = f.byCookie(e, p, flow); counted != "" {
			f.note(counted)
		}
	}
	if counted != "" {
		hash := ring.FlowHash(ring.KeyOf(testKeys[e.KeySlot]), 0, flow.client.Addr(), flow.vip.Addr(), flow.protocol, flow.client.Port(), flow.vip.Port())
		count := 0
		for _, m := range e.Members {
			count = max(count, int(m.ID)+1)
		}
		c, ok := ring.Choose(e.Ring, e.RingCode, count, hash, func(id uint16) bool { return f.alive(e, id) && natMember(e, id).Choosable })
		if !ok {
			return "no_backend"
		}
		id = c.Member
	}
	s := &natSession{endpoint: e.Key, member: id, server: serverOf(natMember(e, id), flow.vip.Port())}
	if reason := f.take(s, flow); reason != "" {
		return reason
	}
	if e.Cookie != nil {
		s.stamps, s.restores = true, e.Cookie.Form == CookieSplitR
		s.cookie = cookie.EncodeShort(f.prf(e, e.Cookie.Mint, flow), e.Cookie.Mint, id, e.Cookie.secret(e.Cookie.Mint))
	}
	s.begin(p)
	f.sessions[flow], f.ports[natPortOf{s.server, s.lip, flow.protocol}] = s, flow
	if !f.wait(flow, s) {
		return "nat_full"
	}
	return ""
}

// begin begins the numbers of a session by the client's packet.
func (s *natSession) begin(p wire.Packet) {
	seq, ack, last := numbersOf(p)
	_, _, protocol, flags := endsOf(p)
	switch {
	case protocol != 6:
	case flags&wire.SYN != 0:
		s.fromClient = natModelSide{acked: seq + 1, end: last}
	default:
		s.fromClient, s.fromServer = natModelSide{acked: seq, end: last}, natModelSide{acked: ack, end: ack}
	}
}

// tries are the ports that are tried for a flow to a server, as the program tries them; none: there is no address.
func (f *natFixture) tries(server netip.AddrPort, flow natFlow) (out []netip.AddrPort) {
	var own []NATAddress
	for _, a := range f.addresses {
		if a.Addr.Is4() == flow.client.Addr().Is4() {
			own = append(own, a)
		}
	}
	if len(own) == 0 {
		return nil
	}
	key := f.mux.memory.config.FlowKey
	hash := ring.TableHash(ring.Key{K0: key.K0, K1: key.K1}, 0, flow.client.Addr(), server.Addr(), flow.protocol, flow.client.Port(), flow.vip.Port())
	for n := range uint64(muxNatLimitLIMIT_NAT_PROBES) {
		at := hash >> 32 * uint64(len(own)) >> 32
		if n >= uint64(muxNatLimitLIMIT_NAT_PROBES)/2 {
			at++
		}
		a := own[at%uint64(len(own))]
		size := uint64(a.High) - uint64(a.Low) + 1
		stride := 1 + hash>>24&0xffff*(size/uint64(muxNatLimitLIMIT_NAT_PROBES))>>16
		out = append(out, netip.AddrPortFrom(a.Addr, a.Low+uint16((hash&0xffffffff*size>>32+n*stride)%size)))
	}
	return out
}

// take finds a port for a session of a flow: a free one, or that of a session that gives its place to it.
func (f *natFixture) take(s *natSession, flow natFlow) string {
	if !possible(flow.client.Addr()) {
		return "bad_source"
	}
	if f.over[flow.vip.Addr()] {
		return "nat_full"
	}
	tries := f.tries(s.server, flow)
	if len(tries) == 0 {
		return "nat_no_address"
	}
	free := func() (lip netip.AddrPort, room bool) {
		for _, lip := range tries {
			port := natPortOf{s.server, lip, flow.protocol}
			_, taken := f.ports[port]
			if _, rests := f.resting[port]; !taken && !rests {
				return lip, len(f.ports)+len(f.resting) < int(testLimits.NAT)
			}
		}
		return netip.AddrPort{}, true
	}
	lip, room := free()
	switch {
	case !room:
		for range int(muxNatLimitLIMIT_NAT_WAITING) {
			if ended, more := f.displace(flow.vip.Addr()); ended || !more {
				break
			}
		}
	case !lip.IsValid():
		for _, lip := range tries {
			other, taken := f.ports[natPortOf{s.server, lip, flow.protocol}]
			if taken && !f.sessions[other].trusted && !f.sessions[other].rests && !f.spares(flow.vip.Addr(), other) {
				f.end(other)
				f.note("nat_displaced")
				break
			}
		}
	}
	if lip, room = free(); !room || !lip.IsValid() {
		return "nat_full"
	}
	s.lip = lip
	return ""
}

// anew begins another connection in a session. The session keeps its place if it waits for trust; false: there is none, and it has ended.
func (f *natModel) anew(flow natFlow, s *natSession) bool {
	s.rests = s.rests || s.over()
	waits := !s.trusted
	s.answered, s.trusted, s.wasReset, s.numbered, s.clock = false, false, false, false, false
	for _, side := range []*natModelSide{&s.fromClient, &s.fromServer} {
		side.finishing, side.done = false, false
	}
	return waits || f.wait(flow, s)
}

// between says whether a number is one of those from `from` to `to`.
func between(n, from, to uint32) bool { return !behind(from, to) && n-from <= to-from }

// behind says whether a number is behind another one.
func behind(a, b uint32) bool { return int32(a-b) > 0 }

// clientSays follows what a client's packet does to a session; false: the session has ended, and the packet is refused.
func (f *natModel) clientSays(flow natFlow, s *natSession, p wire.Packet) bool {
	_, _, protocol, flags := endsOf(p)
	seq, ack, last := numbersOf(p)
	c, v := &s.fromClient, &s.fromServer
	switch {
	case protocol != 6:
		s.trusted = s.trusted || s.answered
	case flags&(wire.SYN|wire.RST) == wire.SYN:
		if s.over() && !f.anew(flow, s) {
			return false
		}
		if !s.answered {
			s.begin(p)
		}
	case flags&wire.RST != 0 && s.answered && !s.numbered:
	case flags&wire.RST != 0:
		s.wasReset = s.wasReset || seq == c.acked || seq == c.end
	default:
		follows := !behind(seq, c.end)
		wasFinishing := v.finishing
		if flags&wire.FIN != 0 && behind(last, c.acked) && (follows || !c.finishing) {
			c.fin, c.finishing = last, true
		}
		if follows && behind(last, c.end) {
			c.end = last
		}
		if flags&wire.ACK != 0 && s.numbered && between(ack, v.acked, v.end) {
			v.acked, s.trusted = ack, true
			v.done = v.done || wasFinishing && ack == v.fin
		}
	}
	return true
}

// serverSays follows what a server's packet does to a session, as clientSays does.
func (f *natModel) serverSays(flow natFlow, s *natSession, p wire.Packet) bool {
	_, _, protocol, flags := endsOf(p)
	seq, ack, last := numbersOf(p)
	c, v := &s.fromClient, &s.fromServer
	if protocol != 6 {
		s.answered = true
		return true
	}
	if flags&wire.RST != 0 && s.answered && !s.numbered {
		return true
	}
	if flags&wire.RST != 0 {
		if flags&wire.ACK != 0 && !s.numbered {
			s.wasReset = s.wasReset || between(ack, c.acked, c.end)
		} else {
			s.wasReset = s.wasReset || between(seq, v.acked, v.end)
		}
		return true
	}
	if flags&wire.SYN != 0 && (s.numbered && seq != s.isn || !s.numbered && s.wasReset) && !f.anew(flow, s) {
		return false
	}
	wasFinishing := c.finishing
	switch {
	case !s.numbered:
		s.isn, v.acked, v.end = seq, seq, last
		if flags&wire.SYN != 0 {
			v.acked++
		}
		if flags&wire.ACK != 0 {
			if flags&wire.SYN != 0 || !between(ack, c.acked, c.end) {
				c.end = ack
			}
			c.acked = ack
		}
	default:
		if flags&wire.ACK != 0 && !s.trusted && !between(seq, v.acked, v.end) {
			v.acked, v.end = seq, last
		}
		if behind(last, v.end) {
			v.end = last
		}
		if flags&wire.ACK != 0 && behind(ack, c.acked) {
			c.acked = ack
			if behind(ack, c.end) {
				c.end = ack
			}
		}
	}
	s.answered, s.numbered = true, true
	if flags&wire.FIN != 0 && behind(last, v.acked) {
		v.fin, v.finishing = last, true
	}
	c.done = c.done || flags&wire.ACK != 0 && wasFinishing && ack == c.fin
	return true
}

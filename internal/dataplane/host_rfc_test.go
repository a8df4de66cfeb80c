package dataplane

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/lb"
)

// rfcTrial is a connection that the programs and the model see.
type rfcTrial struct {
	e        *hostEnv
	r        *rand.Rand
	client   string
	vip, dip string
	outer    string
	source   string
	port     uint16
	server   rfcServer
	next     int64 // what the client sends next, after all that it sent in order
	ended    bool  // it sent its FIN
	gaps     bool  // since the server's last acknowledgement something came before what is in front of it
	// most is the largest acknowledgement that the programs may have accepted: the model's SND.UNA unless a segment was one of those that only a receiver can judge.
	most int64
	// finPossible: the programs may take a FIN for one that the server accepted.
	finPossible bool
	trace       []string
}

// bytes is a segment as an IP packet.
func (x *rfcTrial) bytes(g rfcSegment, src, dst string, sport, dport uint16) []byte {
	x.e.t.Helper()
	ip := ipLayer(src, dst, layers.IPProtocolTCP)
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: g.seq, Ack: g.acked, SYN: g.syn, ACK: g.ack, FIN: g.fin, RST: g.rst, Window: 0x7fff,
	}
	must(x.e.t, tcp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)))
	return serialize(x.e.t, true, ip, tcp, gopacket.Payload(make([]byte, g.length)))
}

// in gives the programs a segment of the client, or of somebody in its name.
func (x *rfcTrial) in(g rfcSegment) {
	x.e.t.Helper()
	x.trace = append(x.trace, fmt.Sprintf("in  %+v", g))
	x.e.run(x.e.host.objects.HostIn, tunnel(x.e.t, x.source, x.outer, x.bytes(g, x.client, x.vip, x.port, 80)))
}

// out gives them a segment of the server.
func (x *rfcTrial) out(g rfcSegment) {
	x.e.t.Helper()
	x.trace = append(x.trace, fmt.Sprintf("out %+v", g))
	x.e.run(x.e.host.objects.HostOut, frame(x.bytes(g, x.dip, x.client, 8080, x.port)))
}

// found is the flow as the table has it.
func (x *rfcTrial) found() (hostFlowRecord, FlowClass) {
	x.e.t.Helper()
	want := flowOf(x.e, x.client, x.dip, x.port)
	place, tag, ok := x.e.host.flows.find(&want, x.e.tick())
	if !ok {
		x.fail("the flow is gone")
	}
	return x.e.host.flows.records[place], tag.class()
}

func (x *rfcTrial) fail(format string, args ...any) {
	x.e.t.Helper()
	x.e.t.Fatalf("%s\nserver %+v, client sends %d next\n%s", fmt.Sprintf(format, args...), x.server, x.next, strings.Join(x.trace, "\n"))
}

// initial is an initial sequence number: mostly one after which numbers wrap, or change their sign, soon.
func initial(r *rand.Rand) uint32 {
	near := uint32(r.IntN(6000)) - 3000
	switch r.IntN(4) {
	case 0:
		return r.Uint32()
	case 1:
		return near + 1<<31
	}
	return near
}

// open begins a connection by a SYN and its answer.
func (x *rfcTrial) open() {
	x.server = rfcServer{iss: initial(x.r), irs: initial(x.r), nxt: 1, rcv: 1, acked: 1}
	x.next = 1
	x.in(rfcSegment{seq: x.server.irs, syn: true})
	x.out(rfcSegment{seq: x.server.iss, acked: x.server.irs + 1, syn: true, ack: true})
}

// edge is a number at, or next to, one that decides, or any.
func (x *rfcTrial) edge(numbers ...int64) int64 {
	if x.r.IntN(8) == 0 {
		return int64(x.r.Uint32())
	}
	return numbers[x.r.IntN(len(numbers))] + int64(x.r.IntN(5)-2)
}

// segment is what the client sends, or somebody in its name.
func (x *rfcTrial) segment() rfcSegment {
	s, r := &x.server, x.r
	honest := rfcSegment{seq: s.irs + uint32(x.next), acked: s.iss + uint32(s.nxt), ack: true}
	forged := rfcSegment{
		seq:   s.irs + uint32(x.edge(s.rcv, s.acked, s.edge(), s.rcv+rfcWindow, s.rcv-rfcWindow, s.rcv+1<<31, x.next)),
		acked: s.iss + uint32(x.edge(s.una, s.nxt, s.una-rfcWindow, s.nxt+1<<31, s.nxt-1<<16)), ack: r.IntN(12) > 0,
	}
	switch n := r.IntN(20); {
	case n < 3:
		return honest
	case n < 4: // an acknowledgement of a part
		honest.acked = s.iss + uint32(s.una+r.Int64N(s.nxt-s.una+1))
		return honest
	case n < 8 && !x.ended: // data
		honest.length = 1 + r.IntN(900)
		x.next += int64(honest.length)
		return honest
	case n < 9 && !x.ended: // data behind a gap, which something fills later
		honest.seq += uint32(1 + r.IntN(500))
		honest.length = 1 + r.IntN(500)
		return honest
	case n < 10 && !x.ended && s.established && r.IntN(3) == 0: // its end
		honest.length, honest.fin, x.ended = r.IntN(2)*100, true, true
		x.next += int64(honest.length) + 1
		return honest
	case n < 13:
		forged.rst, forged.ack = true, r.IntN(2) == 0
		forged.seq = s.irs + uint32(x.edge(s.rcv, s.acked, x.next, s.edge(), s.rcv+rfcWindow, s.rcv+1<<31))
		return forged
	case n < 14:
		forged.syn = true
		return forged
	case n < 16:
		forged.fin = true
		forged.length = r.IntN(2) * r.IntN(100)
		return forged
	}
	forged.length = r.IntN(2) * r.IntN(900)
	return forged
}

// expectation says what a class must be, may be, or neither.
type expectation uint8

const (
	mustNot expectation = iota
	may
	mustBe
)

// holds says whether what is agrees.
func (w expectation) holds(is bool) bool { return w == may || is == (w == mustBe) }

// step gives the programs and the model one segment of the client, and compares. done: the connection is over, or only the receiver can judge how it goes on.
func (x *rfcTrial) step(met map[string]int) (done bool) {
	s, g := &x.server, x.segment()
	before, class := x.found()
	was := *s
	first, end := s.octets(g)
	acked := relative(g.acked, s.iss, s.una)
	fate := s.take(g)
	x.in(g)
	record, now := x.found()

	// A host knows the server's numbers by what it sent: RCV.NXT may be anything from its last acknowledgement to the end of what was sent since. Nor does it know where the
	// windows end to the octet.
	blurred := was.rcv != was.acked || end == was.rcv || first == was.edge()
	inside := end >= was.acked && first <= was.edge() && g.ack && !g.syn && !g.rst
	closing, trusted := mustNot, mustNot
	switch {
	case fate.reset && (was.rcv == was.acked || !x.gaps):
		closing = mustBe
	case g.rst && was.acked <= first && first <= was.rcv:
		closing = may
	}
	ackPlausible := acked >= was.una-rfcWindow && acked <= was.nxt
	if !was.established {
		ackPlausible = acked >= was.nxt-1<<16 && acked <= was.nxt
	}
	if class == FlowTrusted {
		trusted = mustBe
	} else if fate.opens {
		trusted = mustBe
	} else if inside && ackPlausible {
		trusted = may
	}
	if inside && ackPlausible && (fate.accepted || blurred || !was.established) {
		x.most = max(x.most, acked)
		if g.fin {
			x.finPossible = true
		}
	}
	if s.sentFIN && x.finPossible && closing == mustNot {
		closing = may
	}
	kind := "accepted"
	switch {
	case fate.reset:
		kind = "reset"
	case g.rst:
		kind = "other RST"
	case g.syn:
		kind = "SYN"
	case !fate.accepted && inside && ackPlausible:
		kind = "blurred"
	case !fate.accepted:
		kind = "refused"
	case g.fin:
		kind = "FIN"
	}
	met[kind]++
	if !closing.holds(now == FlowClosing) {
		x.fail("%s: class %v after %v, closing is %d by the RFCs", kind, now, class, closing)
	}
	if now != FlowClosing && !trusted.holds(now == FlowTrusted) {
		x.fail("%s: class %v after %v, trusted is %d by the RFCs", kind, now, class, trusted)
	}
	if kind == "refused" || kind == "SYN" || kind == "other RST" && now != FlowClosing {
		record.Seen, before.Seen = 0, 0
		if record != before {
			x.fail("%s: a segment that the server does not accept changed the record from %+v to %+v", kind, before, record)
		}
	}
	if now == FlowClosing || s.over() || inside && ackPlausible && !s.established || g.fin && !fate.accepted && x.finPossible {
		return true
	}
	if s.established {
		if ack := relative(record.AckIn, s.iss, s.una); ack < s.una || ack > max(x.most, s.una) {
			x.fail("%s: acknowledged is %d, by the RFCs %d to %d", kind, ack, s.una, x.most)
		}
	}
	if fate.accepted && (first > was.rcv || len(s.early) > 0 || len(was.early) > 0) {
		x.gaps = true
	}
	if s.beyondFIN() || inside && s.fin != 0 && end > s.fin+1 || g.fin && s.fin != end-1 { // text behind a FIN, or two FINs: no RFC says what comes of it
		met["undecided"]++
		return true
	}
	if fate.answers || fate.refuses {
		x.answer(g, fate)
	}
	return false
}

// answer sends what the server answers to a segment that it does not accept: that ends nothing.
func (x *rfcTrial) answer(g rfcSegment, fate rfcFate) {
	_, class := x.found()
	if fate.refuses {
		x.out(rfcSegment{seq: g.acked, rst: true})
	} else {
		x.out(x.server.acks())
		x.gaps = len(x.server.early) > 0
	}
	if _, now := x.found(); now != class && !(now == FlowClosing && x.server.sentFIN && x.finPossible) {
		x.fail("an answer to a segment that was not accepted makes class %v of %v", now, class)
	}
}

// speaks lets the server acknowledge, send or end. done: the connection is over.
func (x *rfcTrial) speaks(met map[string]int) (done bool) {
	s := &x.server
	if !s.established {
		return false
	}
	length, fin := 0, false
	if !s.sentFIN {
		length, fin = x.r.IntN(2)*(1+x.r.IntN(900)), x.r.IntN(12) == 0
	}
	if x.r.IntN(60) == 0 {
		x.out(rfcSegment{seq: s.iss + uint32(s.nxt), rst: true})
		if _, now := x.found(); now != FlowClosing {
			x.fail("class %v after a RST of the server", now)
		}
		met["server's RST"]++
		return true
	}
	x.out(s.sends(length, fin))
	x.gaps = len(s.early) > 0
	record, now := x.found()
	if got := relative(record.SeqOut, s.iss, s.nxt); got != s.nxt {
		x.fail("the server sent up to %d, the record has %d", s.nxt, got)
	}
	if got := relative(record.AckOut, s.irs, s.rcv); got != s.rcv {
		x.fail("the server acknowledged up to %d, the record has %d", s.rcv, got)
	}
	want := mustNot
	if s.over() {
		want = mustBe // it acknowledged the client's FIN
	} else if s.sentFIN && x.finPossible {
		want = may
	}
	if !want.holds(now == FlowClosing) {
		x.fail("class %v after the server sent, closing is %d by the RFCs", now, want)
	}
	if s.over() {
		met["FINs"]++
	}
	return s.over() || now == FlowClosing
}

// TestHostAgainstRFC: of random connections of both families, whose numbers wrap, the host's record follows each segment as RFC 9293 and RFC 5961 let the server follow it. Anybody
// may have sent one of the client's: with numbers at the edges of what is acceptable, or any. Where only the server can judge, as the host does not see what it received, either is right;
// those connections end.
func TestHostAgainstRFC(t *testing.T) {
	r, e := seeded(t), newClockEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, vip6, dip6, dip6, true))
	kinds := []string{"accepted", "reset", "other RST", "SYN", "blurred", "refused", "FIN", "FINs", "server's RST"}
	met := map[string]int{}
	rare := func(kind string) bool { return met[kind] < 30 }
	for n := 0; n < 3000 || n < 30000 && slices.ContainsFunc(kinds, rare); n++ {
		x := &rfcTrial{e: e, r: r, client: client4, vip: vip4, dip: dip4, outer: dip4, source: source4, port: uint16(1024 + n)}
		if n%2 == 1 {
			x.client, x.vip, x.dip, x.outer, x.source = client6, vip6, dip6, dip6, source6
		}
		x.open()
		if r.IntN(2) == 0 { // the handshake; otherwise strangers may come first
			x.server.take(rfcSegment{seq: x.server.irs + 1, acked: x.server.iss + 1, ack: true})
			x.in(rfcSegment{seq: x.server.irs + 1, acked: x.server.iss + 1, ack: true})
			x.most = 1
		}
		for range 40 {
			if r.IntN(3) == 0 {
				if x.speaks(met) {
					break
				}
			} else if x.step(met) {
				break
			}
		}
		record := flowOf(e, x.client, x.dip, x.port)
		e.forget(record)
	}
	t.Logf("met %v", met)
	for _, kind := range kinds {
		if rare(kind) {
			t.Errorf("%q was met %d times: the segments say little", kind, met[kind])
		}
	}
}

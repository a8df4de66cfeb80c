package dataplane

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// testCookies are keys of both ids.
var testCookies = MuxCookie{Keys: [2][16]byte{{1, 2, 3, 4}, {5, 6, 7, 8, 15: 9}}, Live: [2]bool{true, true}, Shuffled: [2]bool{false, true}}

// cookieEndpoint is an endpoint of cookies.
func cookieEndpoint(vip netip.Addr, port uint16, outers ...string) MuxEndpoint {
	e := endpointOf(vip, lb.TCP, port, outers...)
	e.Affinity, e.Idle = AffinityCookie, lb.Idle{Untrusted: 30 * time.Second, Trusted: 300 * time.Second}
	keys := testCookies
	e.Cookie = &keys
	return e
}

// cookieServers are endpoints of both families with three servers each.
func cookieServers() []MuxEndpoint {
	return []MuxEndpoint{
		cookieEndpoint(muxVIP4, 80, "10.20.1.11", "10.20.2.11", "10.20.3.11"),
		cookieEndpoint(muxVIP6, 80, "2001:db8:20:1::11", "2001:db8:20:2::11", "2001:db8:20:3::11"),
	}
}

// stampFor is a timestamp that carries the cookie of a member for the flow of a client's packet.
func stampFor(p wire.Packet, keys MuxCookie, kid uint8, id uint16) uint32 {
	l4 := p.Payload.(wire.TCP)
	prf := cookie.PRF(keys.Keys[kid], cookie.Flow{
		Client: netip.AddrPortFrom(p.Src, l4.SrcPort), VIP: netip.AddrPortFrom(p.Dst, l4.DstPort),
	})
	return cookie.HostBits.Place(0x12345678, uint32(cookie.Encode(prf, kid, id, keys.secret(kid))))
}

// timestampsOption is the option alone.
func timestampsOption(value, echo uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{8, 10}, value), echo)
}

// usualOptions are what most segments have: two NOPs and timestamps.
func usualOptions(echo uint32) []byte { return append([]byte{1, 1}, timestampsOption(77, echo)...) }

// segment4 and segment6 are segments to the endpoints of cookies.
func segment4(from uint16, flags uint8, options ...byte) wire.Packet {
	p := tcp4(80)
	p.Payload = wire.TCP{SrcPort: from, DstPort: 80, Flags: flags, Options: options, Data: []byte("data behind")}
	return p
}

func segment6(from uint16, flags uint8, options ...byte) wire.Packet {
	p := segment4(from, flags, options...)
	p.Src, p.Dst = muxClient6, muxVIP6
	return p
}

// bothFamilies runs a test with segments of each.
func bothFamilies(t *testing.T, test func(t *testing.T, segment func(from uint16, flags uint8, options ...byte) wire.Packet)) {
	t.Run("IPv4", func(t *testing.T) { test(t, segment4) })
	t.Run("IPv6", func(t *testing.T) { test(t, segment6) })
}

// noted runs a frame and returns where it went and what was counted beside.
func (f flowFixture) noted(p wire.Packet) (modelResult, []string) {
	f.t.Helper()
	f.model.noted = nil
	before := f.reasonsNow()
	got := f.check(p.Frame())
	f.checkFlows()
	var counted []string
	for name, n := range f.reasonsNow() {
		if n != before[name] && name != got.reason {
			counted = append(counted, name)
		}
	}
	slices.Sort(counted)
	return got, counted
}

// entries is how many flows the table has.
func (f flowFixture) entries() (n int) {
	f.model.eachFlow(func(*modelFlow) { n++ })
	return n
}

// TestCookieNamesTheMember: whatever flags and place of the option, the member is the cookie's, and only a FIN is remembered, as the end of its flow.
func TestCookieNamesTheMember(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		f := newFlowFixture(t, cookieServers()...)
		sack := []byte{5, 10, 1, 2, 3, 4, 5, 6, 7, 8}
		for from := range uint16(60) {
			for id := range uint16(3) {
				stamp := stampFor(segment(from, 0), testCookies, uint8(from%2), id)
				option := timestampsOption(77, stamp)
				places := map[string][]byte{
					"usual":       usualOptions(stamp),
					"first":       option,
					"odd offset":  append([]byte{1}, option...),
					"third byte":  append([]byte{1, 1, 1}, option...),
					"behind SACK": slices.Concat([]byte{1, 1}, sack, []byte{1, 1}, option),
					"before SACK": slices.Concat([]byte{1, 1}, option, []byte{1, 1}, sack),
					"three SACKs": slices.Concat([]byte{1, 1}, option, []byte{1, 1, 5, 26}, make([]byte, 24)),
					"two of them": slices.Concat(option, timestampsOption(1, 2)),
					"last":        slices.Concat([]byte{30, 20}, make([]byte, 18), option),
					"filled up":   append(slices.Clone(option), 0, 0xff),
				}
				for name, options := range places {
					flags := []uint8{wire.ACK, wire.ACK | wire.PSH, wire.FIN | wire.ACK, wire.RST | wire.ACK}[(from+id)%4]
					got, counted := f.noted(segment(from, flags, options...))
					if got.member == nil || got.member.Member != id || len(counted) > 0 {
						t.Fatalf("%s: %+v, counted %v: want member %d", name, got, counted, id)
					}
				}
			}
		}
		f.model.eachFlow(func(e *modelFlow) {
			if e.class != FlowClosing {
				t.Errorf("remembered: %+v", *e)
			}
		})
	})
}

// absentCases are segments that carry no cookie, and how they are refused or counted: "" for not at all.
func absentCases(segment func(uint16, uint8, ...byte) wire.Packet, stamp uint32) []struct {
	name, reason, counted string
	packet                wire.Packet
} {
	option := timestampsOption(77, stamp)
	lying := slices.Clone(option)
	lying[1] = 9
	payload := segment(9, wire.ACK)
	tcp := payload.Payload.(wire.TCP)
	tcp.Data = usualOptions(stamp)
	payload.Payload = tcp
	return []struct {
		name, reason, counted string
		packet                wire.Packet
	}{
		{"SYN, whose echo nobody gave it", "forwarded", "", segment(9, wire.SYN, usualOptions(stamp)...)},
		{"SYN and ACK", "forwarded", "", segment(9, wire.SYN|wire.ACK, usualOptions(stamp)...)},
		{"no options", "forwarded", "cookie_absent", segment(9, wire.ACK)},
		{"other options", "forwarded", "cookie_absent", segment(9, wire.ACK, 1, 1, 5, 10, 1, 2, 3, 4, 5, 6, 7, 8)},
		{"options that look alike in the payload", "forwarded", "cookie_absent", payload},
		{"echo 0", "forwarded", "cookie_absent", segment(9, wire.ACK, usualOptions(0)...)},
		{"RST without timestamps", "forwarded", "cookie_absent", segment(9, wire.RST)},
		{"timestamps without ACK", "forwarded", "cookie_absent", segment(9, wire.RST, usualOptions(stamp)...)},
		{"timestamps behind the end of options", "forwarded", "cookie_absent", segment(9, wire.ACK, append([]byte{1, 0}, option...)...)},
		{"timestamps of another length", "tcp_bad_option", "", segment(9, wire.ACK, append([]byte{1, 1}, lying...)...)},
		{"timestamps beyond the header", "tcp_bad_option", "", segment(9, wire.ACK, 1, 1, 8, 10, 1, 2, 3, 4)},
		{"option of length 0 before them", "tcp_bad_option", "", segment(9, wire.ACK, append([]byte{254, 0}, option...)...)},
		{"option of length 1 before them", "tcp_bad_option", "", segment(9, wire.ACK, append([]byte{254, 1}, option...)...)},
	}
}

// TestCookieAbsent: what carries no cookie goes by ring, and then by flow table.
func TestCookieAbsent(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		f := newFlowFixture(t, cookieServers()...)
		byRing := f.check(segment(9, wire.SYN).Frame()).member.Member
		stamp := stampFor(segment(9, 0), testCookies, 0, (byRing+1)%3)
		for _, c := range absentCases(segment, stamp) {
			got, counted := f.noted(c.packet)
			if got.reason != c.reason || strings.Join(counted, " ") != c.counted {
				t.Errorf("%s: %s, counted %v", c.name, got.reason, counted)
			}
			if got.reason == "forwarded" && got.member.Member != byRing {
				t.Errorf("%s: went to member %d, the flow's is %d", c.name, got.member.Member, byRing)
			}
		}
	})
}

// TestCookieInvalid: what is no cookie of a member leads where the flow would go without it, and is counted.
func TestCookieInvalid(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		servers := cookieServers()
		for i := range servers {
			servers[i].Cookie.Live[1] = false
		}
		f := newFlowFixture(t, servers...)
		home := f.check(segment(9, wire.SYN).Frame()).member.Member
		foreign := segment(10, 0) // another flow's cookie
		cases := map[string]uint32{
			"key that is not live":       stampFor(segment(9, 0), testCookies, 1, (home+1)%3),
			"key that never was":         stampFor(segment(9, 0), MuxCookie{Keys: [2][16]byte{{9}}}, 0, (home+1)%3),
			"another flow's":             stampFor(foreign, testCookies, 0, (home+1)%3),
			"id beyond the members":      stampFor(segment(9, 0), testCookies, 0, 3),
			"largest id":                 stampFor(segment(9, 0), testCookies, 0, cookie.MaxID),
			"the least timestamp":        1,
			"a clock without any cookie": 0x00001234,
		}
		for name, stamp := range cases {
			got, counted := f.noted(segment(9, wire.ACK, usualOptions(stamp)...))
			if strings.Join(counted, " ") != "cookie_invalid" || got.member.Member != home {
				t.Errorf("%s: member %d instead of %d, counted %v", name, got.member.Member, home, counted)
			}
		}
	})
}

// TestCookieChangedBits is T14 (protocol section 1.7): a cookie of which one bit was changed mostly leads nowhere; what passes the check leads to no
// chosen server, and mostly to no server at all.
func TestCookieChangedBits(t *testing.T) {
	f := newFlowFixture(t, cookieServers()...)
	accepted, toTheNext, tries := 0, 0, 0
	for from := range uint16(400) {
		home := f.model.walk(segment4(from, wire.SYN).Frame()).member.Member
		id := (home + 1) % 3
		stamp := stampFor(segment4(from, 0), testCookies, 0, id)
		for bit := range 15 {
			tries++
			got := f.check(segment4(from, wire.ACK, usualOptions(stamp^1<<(15+bit))...).Frame())
			if at := f.bucketOf(from); f.model.flows.buckets[at] != [8]modelFlow{} {
				f.mux.memory.flows[at], f.model.flows.buckets[at] = muxFlowBucket{}, [8]modelFlow{}
			} else {
				accepted++ // nothing was remembered: the cookie was taken for one
				if got.member.Member == (home+2)%3 {
					toTheNext++
				}
			}
		}
	}
	// Three members of 2^15 code words are 0.01 %: of 6,000 one, or a few.
	if accepted > 10 || toTheNext > 8 {
		t.Errorf("of %d changed cookies %d were accepted, %d of them for the server that was not asked", tries, accepted, toTheNext)
	}
}

// TestCookieKeys: a cookie counts as long as its key is live, whatever the other key is.
func TestCookieKeys(t *testing.T) {
	for _, live := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		servers := cookieServers()
		for i := range servers {
			servers[i].Cookie.Live = live
		}
		f := newFlowFixture(t, servers...)
		for kid := range uint8(2) {
			for id := range uint16(3) {
				got, counted := f.noted(segment4(uint16(kid)*10+id, wire.ACK, usualOptions(stampFor(segment4(uint16(kid)*10+id, 0), testCookies, kid, id))...))
				if live[kid] && (got.member.Member != id || len(counted) > 0) || !live[kid] && strings.Join(counted, " ") != "cookie_invalid" {
					t.Errorf("live %v, key %d: member %d of %d, counted %v", live, kid, got.member.Member, id, counted)
				}
			}
		}
	}
}

// TestCookieMembers: draining members keep what carries their cookie, dead ones and those that are gone do not.
func TestCookieMembers(t *testing.T) {
	f := newFlowFixture(t, cookieServers()...)
	send := func(id uint16) (modelResult, string) {
		from := 4000 + id
		got, counted := f.noted(segment4(from, wire.ACK, usualOptions(stampFor(segment4(from, 0), testCookies, 0, id))...))
		return got, strings.Join(counted, " ")
	}
	servers := cookieServers()
	servers[0] = without(servers[0], 1)
	f.to(servers...)
	if got, counted := send(1); got.member.Member != 1 || counted != "" {
		t.Errorf("a member that drains: %+v, counted %s", got, counted)
	}
	f.setAlive(MemberAlive{servers[0].Key, 1, false})
	if got, counted := send(1); got.member.Member == 1 || counted != "flow_moved" {
		t.Errorf("a dead member: %+v, counted %s", got, counted)
	}
	f.setAlive(MemberAlive{servers[0].Key, 1, true})
	if got, counted := send(1); got.member.Member != 1 || counted != "" {
		t.Errorf("alive again: %+v, counted %s", got, counted)
	}
	servers[0].Members = slices.Delete(servers[0].Members, 1, 2) // of the middle
	f.to(servers...)
	if got, counted := send(1); got.member.Member == 1 || counted != "cookie_invalid" {
		t.Errorf("a member that is gone: %+v, counted %s", got, counted)
	}
	if got, counted := send(2); got.member.Member != 2 || counted != "" {
		t.Errorf("its neighbour: %+v, counted %s", got, counted)
	}
	for _, m := range servers[0].Members {
		f.setAlive(MemberAlive{servers[0].Key, m.ID, false})
	}
	if got, _ := send(2); got.reason != "no_backend" {
		t.Errorf("with all members dead: %+v", got)
	}
}

// TestCookieErrors: an ICMP error goes to the member whose timestamp it quotes, when it quotes so much.
func TestCookieErrors(t *testing.T) {
	bothFamilies(t, func(t *testing.T, segment func(uint16, uint8, ...byte) wire.Packet) {
		f := newFlowFixture(t, cookieServers()...)
		header, kind := 20, byte(3)
		if segment(0, 0).Dst.Is6() {
			header, kind = 40, 1
		}
		differed := 0
		for from := range uint16(12) {
			home := f.model.walk(segment(from, wire.SYN).Frame()).member.Member
			for id := range uint16(3) {
				stamp := stampFor(segment(from, 0), testCookies, uint8(from%2), id)
				answer := answerTo(segment(from, 0))
				places := map[string][]byte{
					"usual": append([]byte{1, 1}, timestampsOption(stamp, 5)...),
					"odd":   slices.Concat([]byte{1}, timestampsOption(stamp, 5), []byte{0}),
				}
				for name, options := range places {
					tcp := answer.Payload.(wire.TCP)
					tcp.Options, tcp.Flags = options, wire.ACK
					answer.Payload = tcp
					for _, quote := range []int{8, 12, 20, 30, 31, 32, 36, 60} {
						got, counted := f.noted(errorAbout(answer, kind, 1, header+quote))
						want := home
						if at := 20 + 2 + 10; quote >= at || name == "odd" && quote == at-1 {
							want = id
						}
						if got.member == nil || got.member.Member != want || strings.Join(counted, " ") != "icmp_error_forwarded" {
							t.Fatalf("%s, %d bytes quoted: %+v, counted %v: want member %d", name, quote, got, counted, want)
						}
						if want != home {
							differed++
						}
					}
				}
			}
		}
		if differed == 0 || f.entries() > 0 {
			t.Errorf("%d errors went by cookie, %d flows are remembered", differed, f.entries())
		}
	})
}

// TestCookieSYN: a SYN goes by ring and is not remembered, unless the flow table knows its flow or a scheduler chose.
func TestCookieSYN(t *testing.T) {
	servers := cookieServers()
	f := newFlowFixture(t, servers...)
	first := f.send(4000, wire.SYN).member.Member
	if f.entries() != 0 {
		t.Fatal("a SYN that the ring sends is remembered")
	}
	// Without timestamps it is a flow of the table from the first segment on.
	if got := f.send(4000, wire.ACK).member.Member; got != first || f.entries() != 1 || f.only().Class != FlowUntrusted {
		t.Fatalf("sent to member %d, then %d; %d flows", first, got, f.entries())
	}
	f.send(4000, wire.ACK)
	if got := f.only(); got.Class != FlowTrusted {
		t.Errorf("after two segments with ACK: %+v", got)
	}
	// The next connection of the port: SYN and what follows meet the same entry.
	f.to(without(servers[0], first), servers[1])
	if got := f.send(4000, wire.SYN).member.Member; got != first || f.only().Class != FlowTrusted {
		t.Errorf("a SYN of the established flow went to member %d, and made it %+v", got, f.only())
	}
	f.send(4000, wire.FIN|wire.ACK)
	next := f.send(4000, wire.SYN).member.Member
	if next == first || f.only().Class != FlowUntrusted {
		t.Errorf("a new connection went to member %d, which drains, or is %+v", next, f.only())
	}
	if got := f.send(4000, wire.ACK).member.Member; got != next {
		t.Errorf("its first segment went to member %d, the SYN to %d", got, next)
	}
}

// TestForgedCookies: a flood of segments with made-up cookies takes no place of a trusted flow, and no more than the quota of untrusted ones.
func TestForgedCookies(t *testing.T) {
	r := seeded(t)
	f := newFlowFixture(t, cookieServers()...)
	var own []uint16
	for from := uint16(1); len(own) < 6; from++ {
		if f.bucketOf(from) == 0 {
			f.send(from, wire.ACK)
			f.send(from, wire.ACK)
			own = append(own, from)
		}
	}
	was := map[uint16]uint16{}
	for _, from := range own {
		was[from] = f.send(from, wire.ACK).member.Member
	}
	const flood = 20_000
	for range flood {
		p := segment4(uint16(10_000+r.IntN(50_000)), wire.ACK, usualOptions(r.Uint32())...)
		p.Src = netip.AddrFrom4([4]byte{198, 51, byte(r.Uint32()), byte(r.Uint32())})
		f.check(p.Frame())
	}
	f.checkFlows()
	for i, bucket := range f.model.flows.buckets {
		classes := map[FlowClass]int{}
		for _, flow := range bucket {
			classes[flow.class]++
		}
		if n := classes[FlowUntrusted]; n > 4 {
			t.Errorf("bucket %d has %d untrusted flows", i, n)
		}
		if i == 0 && classes[FlowTrusted] < len(own) {
			t.Errorf("of %d trusted flows %d are left", len(own), classes[FlowTrusted])
		}
	}
	for _, from := range own {
		if got := f.send(from, wire.ACK).member.Member; got != was[from] {
			t.Errorf("port %d went from member %d to %d", from, was[from], got)
		}
	}
	if n := f.reasonsNow()["cookie_invalid"]; n < flood*99/100 {
		t.Errorf("cookie_invalid counted %d times of %d", n, flood)
	}
}

// TestCookieFragments: the first fragment's cookie decides for those behind it.
func TestCookieFragments(t *testing.T) {
	f := newFlowFixture(t, cookieServers()...)
	for id := range uint16(3) {
		first := segment4(4000+id, wire.ACK, usualOptions(stampFor(segment4(4000+id, 0), testCookies, 0, id))...)
		first.Flags, first.ID = 0x2000, 900+id
		later := segment4(0, 0)
		later.Flags, later.ID, later.Payload = 5, 900+id, wire.Raw{Number: wire.ProtoTCP, Data: make([]byte, 30)}
		for _, p := range []wire.Packet{first, later} {
			if got := f.check(p.Frame()); got.member == nil || got.member.Member != id {
				t.Errorf("a fragment to member %d: %+v", id, got)
			}
		}
	}
}

// TestTraceOfCookies: a trace goes where the packet goes, and says why.
func TestTraceOfCookies(t *testing.T) {
	f := newFlowFixture(t, cookieServers()...)
	fake := &FakeMux{}
	must(t, fake.Apply(f.model.state))
	for _, c := range []struct {
		name    string
		segment Segment
		flags   uint8
		echo    uint32
		step    string
	}{
		{"cookie", SegmentLater, wire.ACK, stampFor(segment4(4000, 0), testCookies, 1, 2), "by cookie 0x"},
		{"dead", SegmentLater, wire.ACK, stampFor(segment4(4000, 0), testCookies, 1, 1), "is member 1's, which is down"},
		{"gone", SegmentLater, wire.ACK, stampFor(segment4(4000, 0), testCookies, 1, 9), "that of member 9, which there is not"},
		{"forged", SegmentLater, wire.ACK, stampFor(segment4(4001, 0), testCookies, 1, 2), "carries no cookie of this flow"},
		{"none", SegmentLater, wire.ACK, 0, "it echoes no timestamp"},
		{"SYN", SegmentOpening, wire.SYN, stampFor(segment4(4000, 0), testCookies, 1, 2), "a SYN carries no cookie"},
	} {
		f.setAlive(MemberAlive{cookieServers()[0].Key, 1, false})
		fake.SetAlive([]MemberAlive{{cookieServers()[0].Key, 1, false}})
		p := Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.TCP, ClientPort: 4000, Port: 80, Segment: c.segment, Echo: c.echo}
		got, err := f.mux.Trace(p)
		must(t, err)
		options := []byte(nil)
		if c.echo != 0 {
			options = usualOptions(c.echo)
		}
		sent := f.check(segment4(4000, c.flags, options...).Frame())
		if got.Verdict != "forwarded" || got.Member != sent.member.Member || !outerIs(sent.frame, got.Source, got.Outer) {
			t.Errorf("%s: traced %+v, sent to %+v", c.name, got, sent.member)
		}
		if !slices.ContainsFunc(got.Steps, func(s string) bool { return strings.Contains(s, c.step) }) {
			t.Errorf("%s: the trace says %q", c.name, got.Steps)
		}
		byFake, err := fake.Trace(p)
		must(t, err)
		if byFake.Verdict != got.Verdict || byFake.Member != got.Member {
			t.Errorf("%s: the twin says %+v", c.name, byFake)
		}
	}
	servers := cookieServers()
	servers[0].Cookie.Live[1] = false
	f.to(servers...)
	got, err := f.mux.Trace(Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.TCP, ClientPort: 4000, Port: 80, Segment: SegmentLater,
		Echo: stampFor(segment4(4000, 0), testCookies, 1, 2)})
	must(t, err)
	if !slices.ContainsFunc(got.Steps, func(s string) bool { return strings.Contains(s, "there is no key 1") }) {
		t.Errorf("without key 1 the trace says %q", got.Steps)
	}
}

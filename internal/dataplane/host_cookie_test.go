package dataplane

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// bakedBoth runs a test on an IPv4 and on an IPv6 flow of one host.
func bakedBoth(t *testing.T, e *hostEnv, port uint16, test func(t *testing.T, f *bakedFlow)) {
	for _, f := range []*bakedFlow{e.baked4(port), e.baked6(port)} {
		t.Run(f.vip, func(t *testing.T) {
			e.t = t
			test(t, f)
		})
	}
}

// TestHostCookie: a SYN's echo goes, the SYN-ACK and all that follows carries the member's cookie, and the server reads its own times back.
func TestHostCookie(t *testing.T) {
	e := newCookieEnv(t)
	bakedBoth(t, e, 40001, func(t *testing.T, f *bakedFlow) {
		c := uint32(f.cookie(1))
		before := e.reasons(nil)
		f.syn()
		base := uint32(0xfffffff0)
		f.answer(base, f.n.Place(base, c))
		if r, clock := f.record(); r.Stamped != 1 || evcOf(evcEvc(clock)).Kind != cookie.EVCOpening {
			t.Fatalf("after the SYN-ACK: %+v %+v", r, clock)
		}
		f.ack(f.n.Place(base, c), base)
		if _, clock := f.record(); evcOf(evcEvc(clock)).Kind != cookie.EVCLive {
			t.Fatalf("after the echo: %+v", clock)
		}
		for _, ms := range []uint32{15, 16, 200, 5000, 32000, 33000} { // of them 16 is the server's time 0, which says nothing
			f.data(base+ms, f.n.Place(base+ms, c))
			f.ack(f.n.Place(base+ms, c), base+ms)
		}
		f.ack(f.n.Place(base, c), 0) // older than half a clock
		f.in(packet{rst: true, seq: 1, options: usual(9, 77)}, usual(9, 77))
		f.out(packet{rst: true, seq: 1}, nil)
		want := map[string]uint64{"in_delivered": 10, "out_returned": 8, "cookie_begun": 1}
		if got := e.reasons(before); !maps.Equal(got, want) {
			t.Errorf("reasons %v, want %v", got, want)
		}
	})
}

// TestHostCookieSilence is T1 on the host: the stamps around the edges of the clock are the model's.
func TestHostCookieSilence(t *testing.T) {
	e := newCookieEnv(t)
	half := cookie.HostBits.Half()
	bakedBoth(t, e, 40002, func(t *testing.T, f *bakedFlow) {
		for _, silence := range []uint32{half / 2, half - 1, half, half + 1, 2*half - 1, 2 * half, 2*half + 1, 10 * half} {
			f.port++
			f.server = f.port
			m := newModelled(f, rand.New(rand.NewPCG(1, uint64(silence))))
			m.open()
			for range 4 {
				m.now += silence
				m.data()
				m.ack()
				m.now += silence
				m.ack()
			}
		}
	})
}

// modelled is a flow whose every stamp and echo is compared with internal/cookie's.
type modelled struct {
	f      *bakedFlow
	r      *rand.Rand
	state  cookie.EVC
	now    uint32
	want   uint16
	stamps []uint32
	silent bool // the server sent nothing after its SYN-ACK
}

func newModelled(f *bakedFlow, r *rand.Rand) *modelled {
	return &modelled{f: f, r: r, now: r.Uint32(), want: f.cookie(1)}
}

// answer is a SYN-ACK: one that repeats the last one, unless something else came in between.
func (m *modelled) answer() {
	m.f.e.t.Helper()
	w := m.state.Answer(m.f.n, m.now, m.want, m.silent)
	m.silent = true
	m.f.answer(m.now, w)
	m.stamps = append(m.stamps, w)
}

func (m *modelled) open() {
	m.f.e.t.Helper()
	m.f.syn()
	m.answer()
	m.ack()
}

func (m *modelled) data() {
	m.f.e.t.Helper()
	m.silent = false
	t := m.now - m.r.Uint32N(2)
	w := m.state.Stamp(m.f.n, t, m.want)
	m.f.data(t, w)
	m.stamps = append(m.stamps, w)
}

// ack echoes what was sent last, or shortly before.
func (m *modelled) ack() {
	m.f.e.t.Helper()
	m.echo(m.stamps[max(0, len(m.stamps)-1-m.r.IntN(3))])
}

func (m *modelled) echo(w uint32) {
	m.f.e.t.Helper()
	t, ours := m.state.Echo(m.f.n, w)
	if !ours && (uint16(m.f.n.Cookie(w)) == m.f.cookie(1) || uint16(m.f.n.Cookie(w)) == m.f.cookie(2)) && m.f.n.Cookie(w) < 1<<16 {
		m.state.Rebuild(m.f.n, w)
		ours = true
	}
	if !ours {
		t = w
	}
	m.f.ack(w, t)
}

// forget empties the clock, as a flow's that is new in its place.
func (m *modelled) forget() {
	r := flowOf(m.f.e, m.f.client, m.f.dip, m.f.server)
	place, _, ok := m.f.e.host.flows.find(&r, m.f.e.tick())
	if !ok {
		m.f.e.t.Fatal("no flow")
	}
	m.f.e.host.flows.records[place].Stamped = 0
	m.f.e.host.flows.clocks[place].Word = 0
	m.state = cookie.EVC{}
}

// TestHostCookieModel: T2, T3, T8, T9 and T15 on the host. Over random traces with loss, silence, repeated SYN-ACKs, lost states and keys that change, what the
// programs make of every packet is what the model says; the model's properties are shown in internal/cookie.
func TestHostCookieModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, bits := range []uint32{11, uint32(cookie.HostBits)} {
		e := newHostEnv(t)
		e.timeBits = bits
		must(t, e.host.Close())
		e.open()
		e.quiet()
		bindings := []plan.Binding{baked(bind(lb.TCP, vip4, dip4, dip4, true)), baked(bind(lb.TCP, vip6, dip6, dip6, true))}
		rotate := func(epochs ...uint32) {
			e.applyCookies([]plan.CookieKeys{bakedKeys(vip4, epochs...), bakedKeys(vip6, epochs...)}, bindings...)
		}
		rotate(1)
		bakedBoth(t, e, uint16(41000+bits), func(t *testing.T, f *bakedFlow) {
			f.n = cookie.TimeBits(bits)
			r := rand.New(rand.NewPCG(seed, uint64(bits)))
			m := newModelled(f, r)
			rotate(1)
			m.open()
			before := e.reasons(nil)
			for range 1500 {
				m.now += [...]uint32{0, 1, 20, f.n.Half() / 3, f.n.Half() + 3, 20 * f.n.Half()}[min(r.IntN(8), r.IntN(8), 5)]
				switch x := r.IntN(100); {
				case x < 2:
					m.answer()
				case x < 4:
					epochs := [][]uint32{{1, 2}, {2, 1}}[r.IntN(2)]
					m.want = f.cookie(epochs[1])
					rotate(epochs...)
				case x < 6:
					m.forget()
				case x < 50:
					m.data()
				case x < 60:
					for range 1 + r.IntN(20) { // nothing arrives
						m.now += 200
						m.data()
					}
				case x < 63:
					m.echo(r.Uint32() | 1)
				default:
					m.ack()
				}
			}
			got := e.reasons(before)
			for _, reason := range []string{"cookie_begun", "cookie_rebuilt", "cookie_reminted", "cookie_foreign"} {
				if got[reason] == 0 {
					t.Errorf("%s was never counted: %v", reason, got)
				}
			}
			if got["cookie_contended"] != 0 {
				t.Errorf("reasons %v", got)
			}
		})
	}
}

// rawOptions makes the options of a segment these bytes, whatever they say, and its checksum right.
func rawOptions(ip, options []byte) []byte {
	at := 20
	if ip[0]>>4 == 6 {
		at = 40
	}
	tcp := ip[at:]
	copy(tcp[20:], options)
	tcp[16], tcp[17] = 0, 0
	sum := uint32(len(tcp)) + 6
	add := func(b []byte) {
		for i := range b {
			sum += uint32(b[i]) << (8 * (1 - i%2))
		}
	}
	if at == 20 {
		add(ip[12:20])
	} else {
		add(ip[8:40])
	}
	add(tcp)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	tcp[16], tcp[17] = byte(^sum>>8), byte(^sum)
	return ip
}

// TestHostCookieOptions is T11: wherever the option lies it is found, at odd offsets too; what lies about itself, or is signed, is left as it is.
func TestHostCookieOptions(t *testing.T) {
	e := newCookieEnv(t)
	ts := func(v, r uint32) []byte {
		return []byte{8, 10, byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v), byte(r >> 24), byte(r >> 16), byte(r >> 8), byte(r)}
	}
	sack := func(blocks int) []byte {
		return append([]byte{5, byte(2 + 8*blocks)}, bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 0xf8}, blocks)...)
	}
	join := func(parts ...[]byte) []byte {
		all := bytes.Join(parts, nil)
		return append(all, make([]byte, (4-len(all)%4)%4)...)
	}
	nops := func(n int) []byte { return bytes.Repeat([]byte{1}, n) }
	cases := []struct {
		name    string
		options func(v, r uint32) []byte
		left    bool
	}{
		{"usual", func(v, r uint32) []byte { return join(nops(2), ts(v, r)) }, false},
		{"first", func(v, r uint32) []byte { return join(ts(v, r), nops(2)) }, false},
		{"first, then end", func(v, r uint32) []byte { return join(ts(v, r), []byte{0, 9}) }, false},
		{"odd", func(v, r uint32) []byte { return join(nops(1), ts(v, r), nops(1)) }, false},
		{"odd, then end", func(v, r uint32) []byte { return join(nops(3), ts(v, r)) }, false},
		{"after SACK", func(v, r uint32) []byte { return join(sack(1), nops(2), ts(v, r)) }, false},
		{"before SACK of three", func(v, r uint32) []byte { return join(nops(2), ts(v, r), nops(2), sack(3)) }, false},
		{"after SACK of three, at the very end", func(v, r uint32) []byte { return join(sack(3), nops(4), ts(v, r)) }, false},
		{"after an unknown one of odd length", func(v, r uint32) []byte { return join([]byte{253, 5, 1, 2, 3}, ts(v, r), nops(1)) }, false},
		{"after others of its kind that are too short and too long", func(v, r uint32) []byte {
			return join([]byte{8, 6, 1, 2, 3, 4}, append([]byte{8, 12}, bytes.Repeat([]byte{5}, 10)...), ts(v, r))
		}, false},
		{"after the end", func(v, r uint32) []byte { return join([]byte{0}, ts(v, r), nops(1)) }, true},
		{"too short", func(v, r uint32) []byte { o := join(nops(2), ts(v, r)); o[3] = 9; return o }, true},
		{"too long", func(v, r uint32) []byte { o := join(ts(v, r), nops(2)); o[1] = 12; return o }, true},
		{"cut", func(v, r uint32) []byte { return join(nops(7), ts(v, r)[:5]) }, true},
		{"length 0 before", func(v, r uint32) []byte { return join([]byte{253, 0}, ts(v, r)) }, true},
		{"length 1 before", func(v, r uint32) []byte { return join([]byte{253, 1}, ts(v, r)) }, true},
		{"length beyond the header", func(v, r uint32) []byte { return join(ts(v, r), []byte{253, 3}) }, true},
		{"kind without length", func(v, r uint32) []byte { return join(ts(v, r), []byte{1, 253}) }, true},
		{"signed by MD5", func(v, r uint32) []byte {
			return join(ts(v, r), append([]byte{19, 18}, bytes.Repeat([]byte{0xaa}, 16)...))
		}, true},
		{"signed by AO", func(v, r uint32) []byte {
			return join(append([]byte{29, 16, 1, 2}, bytes.Repeat([]byte{0xbb}, 12)...), nops(2), ts(v, r))
		}, true},
	}
	for _, c := range cases {
		bakedBoth(t, e, 42000, func(t *testing.T, f *bakedFlow) {
			m := newModelled(f, rand.New(rand.NewPCG(1, 1)))
			m.open()
			make := func(src, dst string, sport, dport uint16, options []byte) []byte {
				p := packet{protocol: lb.TCP, src: src, dst: dst, sport: sport, dport: dport, ack: true, payload: "odd"}
				for range options {
					p.options = append(p.options, nop())
				}
				return rawOptions(p.bytes(t), options)
			}
			stamp := m.state.Stamp(f.n, m.now, m.want)
			value := stamp
			if c.left {
				value = m.now
			}
			verdict, out := e.run(e.host.objects.HostOut, frame(make(f.dip, f.client, 8080, f.server, c.options(m.now, 7))))
			if want := frame(make(f.vip, f.client, 80, f.port, c.options(value, 7))); verdict != verdictNext || !bytes.Equal(out, want) {
				t.Errorf("%s: verdict %d, frame\n% x, want\n% x", c.name, verdict, out, want)
			}
			echo := stamp
			if !c.left {
				echo = m.now
			}
			verdict, out = e.run(e.host.objects.HostIn, tunnel(t, f.source, f.dip, make(f.client, f.vip, f.port, 80, c.options(8, stamp))))
			if want := frame(make(f.client, f.dip, f.server, 8080, c.options(8, echo))); verdict != verdictRedirect || !bytes.Equal(out, want) {
				t.Errorf("%s: verdict %d, frame\n% x, want\n% x", c.name, verdict, out, want)
			}
		})
	}
}

// TestHostCookieSigned: a connection whose handshake is signed gets no clock, and nothing of it is changed.
func TestHostCookieSigned(t *testing.T) {
	e := newCookieEnv(t)
	f := e.baked4(42500)
	signature := layers.TCPOption{OptionType: 19, OptionLength: 18, OptionData: bytes.Repeat([]byte{7}, 16)}
	signed := func(value, echo uint32) []layers.TCPOption {
		return []layers.TCPOption{signature, nop(), nop(), timesOption(value, echo)}
	}
	f.in(packet{syn: true, options: signed(7, 99)}, signed(7, 99))
	f.out(packet{syn: true, ack: true, options: signed(1000, 7)}, signed(1000, 7))
	f.in(packet{ack: true, options: signed(8, 1000)}, signed(8, 1000))
	f.out(packet{ack: true, options: usual(1001, 8)}, usual(1001, 8))
	if r, _ := f.record(); r.Stamped != 0 {
		t.Errorf("%+v", r)
	}
}

// TestHostCookieNone is T12 without timestamps: there is nothing to stamp, and nothing is changed.
func TestHostCookieNone(t *testing.T) {
	e := newCookieEnv(t)
	bakedBoth(t, e, 42600, func(t *testing.T, f *bakedFlow) {
		f.syn()
		f.out(packet{syn: true, ack: true, options: mssOption(0, 1000)}, mssOption(0, 1000))
		f.in(packet{ack: true}, nil)
		f.out(packet{ack: true, payload: "data"}, nil)
		if r, _ := f.record(); r.Stamped != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestHostCookieForged: segments of connections that are not known make a clock only with the cookie of this member for this flow, by a key that is live.
// Those with one bit changed (T14), another member's, another flow's, another key's, and random ones do not; they arrive as they are.
func TestHostCookieForged(t *testing.T) {
	e := newCookieEnv(t)
	bakedBoth(t, e, 43000, func(t *testing.T, f *bakedFlow) {
		key := bakedKey(1)
		prf := func(port uint16) uint64 {
			return cookie.PRF(key.Key, cookie.Flow{Client: netip.AddrPortFrom(netip.MustParseAddr(f.client), port), VIP: netip.AddrPortFrom(netip.MustParseAddr(f.vip), 80)})
		}
		given, kept := 0, 0
		try := func(name string, c uint16) {
			t.Helper()
			id, ok := cookie.Decode(prf(f.port), c)
			mine := ok && id == cookieMember && cookie.KeyID(c) == 1
			w := f.n.Place(0x12345678, uint32(c))
			echo := w
			if mine {
				echo = 0
			}
			f.ack(w, echo)
			r, _ := f.record()
			if (r.Stamped == 1) != mine {
				t.Errorf("%s: cookie %#04x: %+v", name, c, r)
			}
			if given++; mine {
				kept++
			}
			e.forget(flowOf(e, f.client, f.dip, f.server))
		}
		for bit := range 16 {
			try("one bit", f.cookie(1)^1<<bit)
		}
		if kept != 0 {
			t.Errorf("%d of %d changed cookies were taken", kept, given)
		}
		for id := range uint16(50) {
			try("another member", cookie.Encode(prf(f.port), 1, id))
		}
		try("another flow", cookie.Encode(prf(f.port+1), 1, cookieMember))
		try("a key that is not live", f.cookie(2))
		r := rand.New(rand.NewPCG(5, 5))
		for range 500 {
			try("random", uint16(r.Uint32()))
		}
		try("right", f.cookie(1))
		if kept == 0 {
			t.Error("the right cookie was not taken")
		}
	})
}

// TestHostCookieOtherFlow: a flow in the place of another one has nothing of it, and a packet that is late with its clock does no harm.
func TestHostCookieOtherFlow(t *testing.T) {
	e := newCookieEnv(t)
	f := e.baked4(44000)
	m := newModelled(f, rand.New(rand.NewPCG(1, 1)))
	m.open()
	r := flowOf(e, f.client, f.dip, f.server)
	place, tag, _ := e.host.flows.find(&r, e.tick())
	word := &e.host.flows.tags[place/flowWays].Tags[place%flowWays]
	// What another processor had in its hands when the flow went, it writes with the flow's generation.
	store(word, uint64(tag)+1<<hostFlowTagFLOW_TAG_GENERATION_SHIFT)
	f.data(m.now, m.now)
	before := e.reasons(nil)
	f.ack(f.n.Place(5, 0x1234), f.n.Place(5, 0x1234))
	if got := e.reasons(before); got["cookie_foreign"] != 1 {
		t.Errorf("reasons %v", got)
	}
	store(word, 0)
	f.in(packet{ack: true, options: usual(8, 9)}, usual(8, 9))
	if r, _ := f.record(); r.Stamped != 0 {
		t.Errorf("%+v", r)
	}
	f.data(m.now, m.now)
}

// TestHostCookieContended: while another processor changes a flow's clock a segment of the server says the last time again, one of the client echoes nothing.
func TestHostCookieContended(t *testing.T) {
	e := newCookieEnv(t)
	f := e.baked6(44500)
	m := newModelled(f, rand.New(rand.NewPCG(1, 1)))
	m.open()
	m.now += 10
	m.data()
	r := flowOf(e, f.client, f.dip, f.server)
	place, _, _ := e.host.flows.find(&r, e.tick())
	clock := &e.host.flows.clocks[place]
	clock.Lock |= 1
	before := e.reasons(nil)
	last := m.stamps[len(m.stamps)-1]
	f.data(m.now+20, last)
	f.ack(last, 0)
	f.ack(m.stamps[0], 0)
	if got := e.reasons(before)["cookie_contended"]; got < 2 {
		t.Errorf("cookie_contended %d", got)
	}
	clock.Lock++
	m.ack()
	m.data()
}

// TestHostCookieStays: a flow keeps its clock and its cookie when its endpoint has cookies no more, when its keys are gone and when the agent starts again.
func TestHostCookieStays(t *testing.T) {
	e := newCookieEnv(t)
	plain := []plan.Binding{bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, vip6, dip6, dip6, true)}
	for i := range plain {
		plain[i].Member = cookieMember
	}
	m := newModelled(e.baked4(45000), rand.New(rand.NewPCG(1, 1)))
	m.open()
	go1 := func() {
		t.Helper()
		for range 3 {
			m.now += 40_000
			m.data()
			m.ack()
		}
	}
	go1()
	e.applyCookies(nil, plain...)
	go1()
	fresh := e.baked4(45001)
	fresh.in(packet{syn: true, options: onSYN(7, 99)}, onSYN(7, 99))
	fresh.answer(1000, 1000)
	must(t, e.host.Close())
	e.open()
	e.quiet()
	go1()
	e.applyCookies([]plan.CookieKeys{bakedKeys(vip4, 2, 3)}, baked(plain[0]), plain[1])
	m.want = m.f.cookie(3)
	if m.want == m.f.cookie(1) {
		t.Fatal("the keys are equal")
	}
	m.want = m.f.cookie(1) // both keys have one id: which of them a cookie is of cannot be told
	go1()
	e.applyCookies([]plan.CookieKeys{bakedKeys(vip4, 3, 4)}, baked(plain[0]), plain[1])
	m.want = m.f.cookie(4)
	m.now += 10
	m.data()
	m.ack()
	m.now += 10
	m.data()
	if m.state.Cookie != m.f.cookie(4) {
		t.Errorf("the clock has %#04x", m.state.Cookie)
	}
}

// TestHostCookieSubstitute: the cookie of a flow whose client port its server does not see is of the port that muxes see.
func TestHostCookieSubstitute(t *testing.T) {
	e := newHostEnv(t).quiet()
	second := baked(bind(lb.TCP, "203.0.113.11", dip4, dip4, true))
	e.applyCookies([]plan.CookieKeys{bakedKeys(vip4, 1), bakedKeys("203.0.113.11", 3)}, baked(bind(lb.TCP, vip4, dip4, dip4, true)), second)
	first := newModelled(e.baked4(46000), rand.New(rand.NewPCG(1, 1)))
	first.open()
	f := e.baked4(46000)
	f.vip = "203.0.113.11"
	p := packet{protocol: lb.TCP, src: f.client, dst: f.vip, sport: f.port, dport: 80, syn: true, options: onSYN(7, 0)}
	_, out := e.run(e.host.objects.HostIn, tunnel(t, f.source, f.dip, p.bytes(t)))
	f.server = uint16(out[34])<<8 | uint16(out[35])
	if f.server == f.port {
		t.Fatal("no other port")
	}
	other := newModelled(f, rand.New(rand.NewPCG(2, 1)))
	other.want = f.cookie(3)
	if other.want == first.want {
		t.Fatal("one cookie for two VIPs")
	}
	other.open()
	for range 5 {
		other.now, first.now = other.now+50_000, first.now+20_000
		other.data()
		first.data()
		other.ack()
		first.ack()
	}
}

// TestHostCookieRepairs: of a flow that is not known here a cookie says whose it is, whatever the ring says: it stays, or goes to the member that it names.
func TestHostCookieRepairs(t *testing.T) {
	e := newHostEnv(t).quiet()
	b := baked(bind(lb.TCP, vip4, dip4, dip4, true))
	b.Member = 0
	flow := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true, payload: "x"}
	third := "10.20.9.12"
	apply := func(r *HostRepair) {
		must(t, e.host.Apply(HostState{TunnelSources: tunnelSources, MTU: 1500, Bindings: []plan.Binding{b}, Cookies: []plan.CookieKeys{bakedKeys(vip4, 1)}, Repairs: []*HostRepair{r}}))
	}
	apply(displaced(b, flow, 0, 1, HostTarget{ID: 2, Outer: netip.MustParseAddr(third)}))
	f := e.baked4(40001)
	echo := func(id uint16) uint32 {
		f.member = id
		return f.n.Place(77, uint32(f.cookie(1)))
	}
	in := func(id uint16) []byte {
		p := flow
		p.options = usual(8, echo(id))
		return tunnel(t, source4, dip4, p.bytes(t))
	}
	e.expect("another's", in(2), verdictRedirect, sentOn(in(2), host4, third, 2), "repaired_away")
	e.expect("of nobody there is", in(9), verdictRedirect, sentOn(in(9), host4, away4, 1), "repaired_away")
	e.expect("no cookie", tunnel(t, source4, dip4, flow.bytes(t)), verdictRedirect, sentOn(tunnel(t, source4, dip4, flow.bytes(t)), host4, away4, 1), "repaired_away")
	// Nothing was displaced: cookies alone say whose a flow is.
	still := displaced(b, flow, 0, 1, HostTarget{ID: 2, Outer: netip.MustParseAddr(third)})
	still.Turns = ring.Fold()
	apply(still)
	e.expect("another's, of an endpoint at rest", in(2), verdictRedirect, sentOn(in(2), host4, third, 2), "repaired_away")
	before := e.reasons(nil)
	f.ack(echo(0), 0)
	if got, want := e.reasons(before), one("in_delivered", "cookie_rebuilt"); !maps.Equal(got, want) {
		t.Errorf("its own: reasons %v, want %v", got, want)
	}
	f = e.baked4(40002)
	flow.sport = 40002
	stranger := flow
	stranger.dst, stranger.dport = dip4, 8080
	e.expect("no cookie, of an endpoint at rest", tunnel(t, source4, dip4, flow.bytes(t)), verdictRedirect, frame(stranger.bytes(t)), "in_delivered", "repair_nobody")
}

// TestHostCookieMPTCP: the answer to a client of MPTCP says that it is to open no more connections to the VIP, which may come to other servers.
func TestHostCookieMPTCP(t *testing.T) {
	e := newCookieEnv(t)
	capable := func(flags byte) layers.TCPOption {
		return layers.TCPOption{OptionType: 30, OptionLength: 12, OptionData: []byte{0x01, flags, 1, 2, 3, 4, 5, 6, 7, 8}}
	}
	bakedBoth(t, e, 47000, func(t *testing.T, f *bakedFlow) {
		for i, c := range []struct{ before, after byte }{{0x01, 0x21}, {0x81, 0xa1}, {0x21, 0x21}} {
			for nops := range 2 {
				f.port = uint16(47000 + 2*i + nops)
				f.server = f.port
				options := func(value uint32, flags byte) (o []layers.TCPOption) {
					for range nops {
						o = append(o, nop())
					}
					return append(o, timesOption(value, 7), capable(flags))
				}
				f.syn()
				f.out(packet{syn: true, ack: true, options: options(5000, c.before)}, options(f.n.Place(5000, uint32(f.cookie(1))), c.after))
			}
		}
		// A join has another subtype: nothing to say there.
		f.port++
		f.server = f.port
		join := layers.TCPOption{OptionType: 30, OptionLength: 16, OptionData: append([]byte{0x10, 1}, make([]byte, 12)...)}
		f.syn()
		f.out(packet{syn: true, ack: true, options: []layers.TCPOption{timesOption(1, 7), join}},
			[]layers.TCPOption{timesOption(f.n.Place(1, uint32(f.cookie(1))), 7), join})
	})
}

// TestHostCookieRefused: what cannot be is refused, with the field.
func TestHostCookieRefused(t *testing.T) {
	good := baked(bind(lb.TCP, vip4, dip4, dip4, true))
	twice := bakedKeys(vip4, 1)
	twice.Keys = append(twice.Keys, bakedKey(3))
	none := bakedKeys(vip4, 1)
	none.Mint = 2
	large, udp, owned := good, baked(bind(lb.UDP, vip4, dip4, dip4, true)), baked(bind(lb.TCP, vip4, dip4, dip4, false))
	large.Member, owned.Member = 4096, 256
	ports := owned
	ports.Key.PortEnd, ports.DIPPort, ports.Member = 90, 0, 1
	for _, c := range []struct {
		state HostState
		want  string
	}{
		{HostState{Bindings: []plan.Binding{large}}, "binding tcp 203.0.113.10:80 at 10.20.1.11: member: 4096: must be at most 4095 with cookies"},
		{HostState{Bindings: []plan.Binding{udp}}, "binding udp 203.0.113.10:53 at 10.20.1.11: cookie: must be off but with tcp and, where the server owns the VIP, a single port"},
		{HostState{Bindings: []plan.Binding{owned}}, "binding tcp 203.0.113.10:80 at 10.20.1.11: member: 256: must be at most 255 with cookies"},
		{HostState{Bindings: []plan.Binding{ports}}, "binding tcp 203.0.113.10:80-90 at 10.20.1.11: cookie: must be off but with tcp and, where the server owns the VIP, a single port"},
		{HostState{Cookies: []plan.CookieKeys{bakedKeys(vip4, 1), bakedKeys(vip4, 2)}}, "keys of cookies of 203.0.113.10: there twice"},
		{HostState{Cookies: []plan.CookieKeys{twice}}, "keys of cookies of 203.0.113.10: epochs 1 and 3 have one id"},
		{HostState{Cookies: []plan.CookieKeys{none}}, "keys of cookies of 203.0.113.10: none of epoch 2, which is to be stamped with"},
	} {
		if err := (&FakeHost{}).Apply(c.state); fmt.Sprint(err) != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

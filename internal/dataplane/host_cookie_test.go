package dataplane

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

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
			id, ok := cookie.Decode(prf(f.port), c, secretUnder(key))
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
			try("another member", cookie.Encode(prf(f.port), 1, id, secretUnder(key)))
		}
		try("another flow", cookie.Encode(prf(f.port+1), 1, cookieMember, secretUnder(key)))
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

// TestHostCookieRefused: what cannot be is refused, with the field.
func TestHostCookieRefused(t *testing.T) {
	good := baked(bind(lb.TCP, vip4, dip4, dip4, true))
	twice := bakedKeys(vip4, 1)
	twice.Keys = append(twice.Keys, bakedKey(3))
	none := bakedKeys(vip4, 1)
	none.Mint = 2
	large, udp, owned := good, baked(bind(lb.UDP, vip4, dip4, dip4, true)), baked(bind(lb.TCP, vip4, dip4, dip4, false))
	large.Member, owned.Member = 32749, 2039
	ports := owned
	ports.Key.PortEnd, ports.DIPPort, ports.Member = 90, 0, 1
	for _, c := range []struct {
		state HostState
		want  string
	}{
		{HostState{Bindings: []plan.Binding{large}}, "binding tcp 203.0.113.10:80 at 10.20.1.11: member: 32749: must be at most 32748 with cookies"},
		{HostState{Bindings: []plan.Binding{udp}}, "binding udp 203.0.113.10:53 at 10.20.1.11: cookie: must be off but with tcp and, where the server owns the VIP, a single port"},
		{HostState{Bindings: []plan.Binding{owned}}, "binding tcp 203.0.113.10:80 at 10.20.1.11: member: 2039: must be at most 2038 with cookies"},
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

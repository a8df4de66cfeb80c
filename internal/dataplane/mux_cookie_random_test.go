package dataplane

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestCookiesAgainstModel sends random segments through endpoints of cookies, while members come, go, die and move, keys change, time passes and sweeps run.
func TestCookiesAgainstModel(t *testing.T) {
	f, r := newFlowFixture(t, cookieServers()...), seeded(t)
	for step := range 30_000 {
		switch n := r.IntN(500); {
		case n == 0:
			f.to(randomCookieEndpoints(r)...)
		case n < 4:
			f.randomFlips(r)
		case n < 8:
			f.pass(time.Duration(r.IntN(60)) * time.Second)
		case n == 8:
			f.over()
		}
		f.check(randomCookiePacket(r, f.model.state.Endpoints).Frame())
		if step%50 == 0 || t.Failed() {
			f.checkFlows()
		}
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
	}
	t.Log(f.reasonsNow())
}

// randomCookieEndpoints are some endpoints of random members and keys, most of them of cookies.
func randomCookieEndpoints(r *rand.Rand) (endpoints []MuxEndpoint) {
	for _, port := range []uint16{80, 81, 82} {
		for _, vip := range []netip.Addr{muxVIP4, muxVIP6} {
			e := cookieEndpoint(vip, port)
			e.Cookie = randomCookieKeys(r)
			if r.IntN(2) == 0 {
				e.Scheduler = ScheduleKind(r.IntN(4)) // without a sequence: the ring is asked, and remembered
			}
			e.FlowsFirst, e.KeepDead = r.IntN(3) == 0, r.IntN(3) == 0
			if r.IntN(5) == 0 {
				e.Affinity, e.Cookie = AffinityFlow, nil
			}
			e.Idle = lb.Idle{Untrusted: time.Duration(1+r.IntN(40)) * time.Second, Trusted: time.Duration(1+r.IntN(300)) * time.Second}
			for id := range uint16(1 << r.IntN(5)) {
				if r.IntN(3) != 0 {
					e.Members = append(e.Members, MuxMember{ID: id, Outer: fuzzOuter(int(id), vip.Is6()), MTU: 1500, Choosable: r.IntN(5) != 0, Alive: r.IntN(5) != 0})
				}
			}
			if r.IntN(6) != 0 {
				endpoints = append(endpoints, without(e, 99))
			}
		}
	}
	return endpoints
}

// randomCookieKeys are of four keys, so that some are met again.
func randomCookieKeys(r *rand.Rand) *MuxCookie {
	k := MuxCookie{Live: [2]bool{r.IntN(3) != 0, r.IntN(3) != 0}}
	k.Live[r.IntN(2)], k.Shuffled = true, [2]bool{r.IntN(2) == 0, r.IntN(2) == 0}
	k.Keys[0][0], k.Keys[1][0] = byte(r.IntN(2)), byte(2+r.IntN(2))
	return &k
}

// randomCookiePacket is of one of a few hundred flows, mostly with a cookie of one of the endpoints' members under some key.
func randomCookiePacket(r *rand.Rand, endpoints []MuxEndpoint) wire.Packet {
	port := []uint16{80, 80, 81, 82}[r.IntN(4)]
	p := tcpSegment(port, uint16(r.IntN(100)), []uint8{wire.SYN, wire.ACK, wire.ACK, wire.ACK | wire.PSH, wire.FIN | wire.ACK, wire.RST, 0, wire.SYN | wire.ACK}[r.IntN(8)])
	if r.IntN(2) == 0 {
		p.Src, p.Dst = muxClient6, muxVIP6
	}
	tcp := p.Payload.(wire.TCP)
	keys := *randomCookieKeys(r)
	if i := slices.IndexFunc(endpoints, func(e MuxEndpoint) bool { return e.Key.VIP == p.Dst && e.Key.Port == port && e.Cookie != nil }); i >= 0 && r.IntN(8) != 0 {
		keys = *endpoints[i].Cookie
	}
	switch stamp := stampFor(p, keys, uint8(r.IntN(2)), uint16(r.IntN(12))); r.IntN(8) {
	case 0:
	case 1:
		tcp.Options = randomOptions(r)
	case 2:
		tcp.Options = append([]byte{1}, timestampsOption(stamp, stamp)...)
	case 3:
		tcp.Options = usualOptions(stamp ^ 1<<r.IntN(32))
	default:
		tcp.Options = usualOptions(stamp)
	}
	p.Payload = tcp
	if r.IntN(12) == 0 {
		answer := answerTo(p)
		l4 := answer.Payload.(wire.TCP)
		answer.Payload = l4
		kind := byte(3)
		if p.Dst.Is6() {
			kind = 1
		}
		return errorAbout(answer, kind, 1, 20+r.IntN(90))
	}
	return p
}

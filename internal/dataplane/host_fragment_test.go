package dataplane

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/lb"
)

// cut makes fragments of an IP packet; `at` are the offsets, multiples of 8, where its payload is cut.
func cut(ip []byte, id uint32, at ...int) [][]byte {
	header := 20
	if ip[0]>>4 == 6 {
		header = 40
	}
	var out [][]byte
	at = append(append([]int{0}, at...), len(ip)-header)
	for i := range at[1:] {
		more := i+2 < len(at)
		part := ip[header+at[i] : header+at[i+1]]
		if header == 20 {
			out = append(out, fragment4(ip, uint16(id), at[i], more, part))
		} else {
			out = append(out, fragment6(ip, id, at[i], more, part))
		}
	}
	return out
}

func fragment4(ip []byte, id uint16, offset int, more bool, part []byte) []byte {
	f := append(slices.Clone(ip[:20]), part...)
	binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
	binary.BigEndian.PutUint16(f[4:], id)
	word := uint16(offset / 8)
	if more {
		word |= 0x2000
	}
	binary.BigEndian.PutUint16(f[6:], word)
	f[10], f[11] = 0, 0
	binary.BigEndian.PutUint16(f[10:], ^headerSum(f[:20]))
	return f
}

func fragment6(ip []byte, id uint32, offset int, more bool, part []byte) []byte {
	f := append(slices.Clone(ip[:40]), ip[6], 0, byte(offset>>8), byte(offset), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
	if more {
		f[43] |= 1
	}
	f[6] = byte(layers.IPProtocolIPv6Fragment)
	f = append(f, part...)
	binary.BigEndian.PutUint16(f[4:], uint16(len(f)-40))
	return f
}

// setClock sets the programs' time.
func (e *hostEnv) setClock(now time.Duration) {
	e.t.Helper()
	must(e.t, e.host.objects.HostTestNow.Set(uint64(now)))
}

// newClockEnv is a quiet environment whose time the test sets.
func newClockEnv(t *testing.T) *hostEnv {
	e := newHostEnv(t)
	e.testClock = true
	e.open()
	e.quiet()
	e.setClock(time.Hour)
	return e
}

// TestHostFragments: fragments follow their first one, in and out, both families, by IPIP and by GUE; without it, or
// five seconds after it, they are refused (in) or left alone (out).
func TestHostFragments(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bind(lb.UDP, vip4, dip4, dip4, true), gue(5, bind(lb.UDP, vip6, host6, dip6, true)),
		bind(lb.UDP, owned4, host4, host4, false), bind(lb.TCP, vip4, dip4, dip4, true))
	text := string(make([]byte, 100)) + "and so on, up to an odd end"
	ask := packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 40001, dport: 53, payload: text}
	got := ask
	got.dst, got.dport = dip4, 5353
	in, out := cut(ask.bytes(t), 0xabcd, 32, 64), cut(got.bytes(t), 0xabcd, 32, 64)

	e.expect("before its first", tunnel(t, source4, dip4, in[1]), verdictDrop, nil, "in_fragment")
	e.expect("first", tunnel(t, source4, dip4, in[0]), verdictRedirect, frame(out[0]), "in_delivered")
	e.expect("second", tunnel(t, source4, dip4, in[1]), verdictRedirect, frame(out[1]), "in_delivered", "fragment_followed")
	e.expect("last", tunnel(t, source4, dip4, in[2]), verdictRedirect, frame(out[2]), "in_delivered", "fragment_followed")
	e.expect("of another datagram", tunnel(t, source4, dip4, cut(ask.bytes(t), 0xabce, 32)[1]), verdictDrop, nil, "in_fragment")
	e.expect("for others", tunnel(t, source4, "10.20.1.99", cut(ask.bytes(t), 0xabce, 32)[1]), verdictNext, nil, "pass_not_ours")

	answer := packet{protocol: lb.UDP, src: dip4, dst: client4, sport: 5353, dport: 40001, payload: text}
	want := answer
	want.src, want.sport = vip4, 53
	in, out = cut(answer.bytes(t), 0x1111, 64), cut(want.bytes(t), 0x1111, 64)
	e.answered("before its first", frame(in[1]), verdictNext, frame(in[1]), "pass_not_ours")
	e.answered("first", frame(in[0]), verdictNext, frame(out[0]), "out_returned")
	e.answered("last", frame(in[1]), verdictNext, frame(out[1]), "out_returned", "fragment_followed")

	ask = packet{protocol: lb.UDP, src: client6, dst: vip6, sport: 40001, dport: 53, payload: text}
	got = ask
	got.dst, got.dport = dip6, 5353
	in, out = cut(ask.bytes(t), 0xabcd1234, 32, 64), cut(got.bytes(t), 0xabcd1234, 32, 64)
	e.expect("6 before its first", gueTunnel(t, source6, host6, 5, in[2]), verdictDrop, nil, "in_fragment")
	e.expect("6 first", gueTunnel(t, source6, host6, 5, in[0]), verdictRedirect, frame(out[0]), "in_delivered")
	in[2][40] = byte(layers.IPProtocolIPv6Destination) // RFC 8200 section 4.5: only the first fragment's counts
	out[2][40] = in[2][40]
	e.expect("6 last", gueTunnel(t, source6, host6, 5, in[2]), verdictRedirect, frame(out[2]), "in_delivered", "fragment_followed")
	answer = packet{protocol: lb.UDP, src: dip6, dst: client6, sport: 5353, dport: 40001, payload: text}
	want = answer
	want.src, want.sport = vip6, 53
	in, out = cut(answer.bytes(t), 7, 64), cut(want.bytes(t), 7, 64)
	e.answered("6 first", frame(in[0]), verdictNext, frame(out[0]), "out_returned")
	e.answered("6 last", frame(in[1]), verdictNext, frame(out[1]), "out_returned", "fragment_followed")

	ask = packet{protocol: lb.UDP, src: client4, dst: owned4, sport: 40001, dport: 53, payload: text}
	in = cut(ask.bytes(t), 9, 64)
	e.expect("owned first", tunnel(t, source4, host4, in[0]), verdictPass, frame(in[0]), "in_untouched")
	e.expect("owned last", tunnel(t, source4, host4, in[1]), verdictPass, frame(in[1]), "in_untouched", "fragment_followed")
	e.setClock(time.Hour + 5*time.Second)
	e.expect("after five seconds", tunnel(t, source4, host4, in[1]), verdictPass, nil, "in_untouched", "fragment_followed")
	e.setClock(time.Hour + 5*time.Second + 1)
	e.expect("after more", tunnel(t, source4, host4, in[1]), verdictDrop, nil, "in_fragment")

	tcp := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true, payload: text}
	got = tcp
	got.dst, got.dport = dip4, 8080
	in, out = cut(tcp.bytes(t), 3, 24), cut(got.bytes(t), 3, 24)
	e.expect("TCP first", tunnel(t, source4, dip4, in[0]), verdictRedirect, frame(out[0]), "in_delivered")
	e.expect("TCP last", tunnel(t, source4, dip4, in[1]), verdictRedirect, frame(out[1]), "in_delivered", "fragment_followed")
	e.expect("TCP without its header", tunnel(t, source4, dip4, cut(tcp.bytes(t), 4, 8)[0]), verdictDrop, nil, "in_malformed")
}

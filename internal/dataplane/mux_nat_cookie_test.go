package dataplane

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/wire"
)

// splitServers are natServers of tcp with cookies.
func splitServers(form CookieForm) []MuxEndpoint {
	out := natServers()[:2]
	for i := range out {
		keys := testCookies
		keys.Form, keys.Mint = form, 1
		out[i].Affinity, out[i].Cookie = AffinityCookie, &keys
	}
	return out
}

// stamped is a packet with other timestamps at the same place.
func stamped(p wire.Packet, value, echo uint32) wire.Packet {
	at, _ := stampOf(p, 0)
	return restamped(restamped(p, at, value), at+4, echo)
}

// optionPlaces are options with timestamps at many places.
func optionPlaces() map[string][]byte {
	option := timestampsOption(0, 0)
	return map[string][]byte{
		"usual": usualOptions(0), "first": option, "odd offset": append([]byte{1}, option...), "third byte": append([]byte{1, 1, 1}, option...),
		"behind SACK": slices.Concat([]byte{1, 1, 5, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1}, option),
		"last":        slices.Concat([]byte{30, 20}, make([]byte, 18), option),
		"as a SYN's":  slices.Concat([]byte{2, 4, 5, 0xb4, 4, 2}, option, []byte{1, 3, 3, 7}),
	}
}

// TestNATStamps: the client gets timestamps that carry its member, and the server gets its own back, or none, wherever they are.
func TestNATStamps(t *testing.T) {
	for _, form := range []CookieForm{CookieSplitR, CookieSplitZ} {
		for _, v6 := range []bool{false, true} {
			f := newNATFixture(t, splitServers(form)...)
			from := uint16(1000)
			for name, options := range optionPlaces() {
				for _, clock := range []uint32{5, 0x7ffff, 0x80000, 0xfffff, 0x12345678, 0xffffffff, 0xfffffff0} {
					from++
					segment := natPacket(v6, false, from, wire.SYN, options...)
					there := f.in(stamped(segment, 77, 0xdeadbeef)) // of a SYN the echo means nothing
					_, echo := stampOf(*there.packet, 1)
					if echo != 0 {
						t.Fatalf("%s: a SYN went on with echo %#x", name, echo)
					}
					segment = natPacket(v6, false, from, wire.ACK, options...)
					for i := range uint32(5) {
						own := clock + i*100000
						back := f.out(stamped(serverSays(*there.packet), own, 77))
						_, w := stampOf(*back.packet, 0)
						flow := f.ports[f.portOf(*there.packet)]
						e := f.endpointFor(flow.vip, 6)
						id, ok := cookie.DecodeShort(f.prf(e, 1, flow), uint16(cookie.SplitBits.Cookie(w)), e.Cookie.secret(1))
						if !ok || id != f.sessions[flow].member || cookie.ShortKeyID(uint16(cookie.SplitBits.Cookie(w))) != 1 {
							t.Fatalf("%s: timestamp %#x names member %d, %v", name, w, id, ok)
						}
						got := f.in(stamped(segment, 78, w))
						want := own
						if form == CookieSplitZ {
							want = 0
						}
						if _, echo := stampOf(*got.packet, 1); echo != want {
							t.Fatalf("%s: %#x came back as %#x, went on as %#x", name, own, w, echo)
						}
					}
				}
				f.in(natPacket(v6, false, from, wire.ACK))
				f.out(serverSays(natPacket(v6, false, from, wire.ACK)))
			}
		}
	}
}

// portOf is the port of a packet that the server gets.
func (f *natFixture) portOf(p wire.Packet) natPortOf {
	src, dst, protocol, _ := endsOf(p)
	return natPortOf{dst, src, protocol}
}

// TestNATCookieNamesTheMember: where nobody knows the flow, the cookie says whose it is, as long as it is one of a member that is there.
func TestNATCookieNamesTheMember(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		f := newNATFixture(t, splitServers(CookieSplitR)...)
		_, vip, _, _ := endsOf(natPacket(v6, false, 1, 0))
		e := f.endpointFor(vip, 6)
		for from := uint16(1000); from < 1060; from++ {
			for kid := range uint8(2) {
				src, dst, _, _ := endsOf(natPacket(v6, false, from*2+uint16(kid), 0))
				flow, id := natFlow{src, dst, 6}, from%4 // of member 3 there is none
				w := cookie.SplitBits.Place(0x1234567, uint32(cookie.EncodeShort(f.prf(e, kid, flow), kid, id, e.Cookie.secret(kid))))
				got := f.in(natPacket(v6, false, src.Port(), wire.ACK, usualOptions(w)...))
				if id < 3 && (len(got.noted) > 0 || f.sessions[flow].member != id) {
					t.Fatalf("counted %v, %+v: want member %d", got.noted, f.sessions[flow], id)
				}
			}
		}
		for bit := range 12 {
			src, dst, _, _ := endsOf(natPacket(v6, false, uint16(5000+bit), 0))
			carried := cookie.EncodeShort(f.prf(e, 0, natFlow{src, dst, 6}), 0, 1, e.Cookie.secret(0)) ^ 1<<bit
			f.in(natPacket(v6, false, src.Port(), wire.ACK, usualOptions(cookie.SplitBits.Place(99, uint32(carried)))...))
		}
		f.in(natPacket(v6, false, 6000, wire.ACK))
		f.setAlive(MemberAlive{e.Key, 1, false})
		src, dst, _, _ := endsOf(natPacket(v6, false, 6001, 0))
		w := cookie.SplitBits.Place(7, uint32(cookie.EncodeShort(f.prf(e, 0, natFlow{src, dst, 6}), 0, 1, e.Cookie.secret(0))))
		f.in(natPacket(v6, false, 6001, wire.ACK, usualOptions(w)...))
		f.sweep()
	}
}

// natErrorOf is an ICMP error of a router about a packet, and what it becomes about the same packet on the other side, from and to these.
func natError(about, other wire.Packet, kind, code byte, quote int) (frame []byte, want wire.Packet) {
	got := errorAbout(about, kind, code, quote)
	got.TTL = 60
	want = errorAbout(other, kind, code, quote)
	want.Src, want.TTL = other.Dst, 59
	data := want.Payload.(wire.Raw)
	data.Data[2], data.Data[3] = 0, 0
	if want.Src.Is4() {
		binary.BigEndian.PutUint16(data.Data[2:], wire.Checksum(data.Data))
	} else {
		binary.BigEndian.PutUint16(data.Data[2:], wire.Checksum(wire.PseudoHeader(want.Src, want.Dst, 58, len(data.Data)), data.Data))
	}
	return got.Frame(), want
}

// TestNATErrors: an ICMP error about what one side sent reaches it as one about just that, whatever it quotes.
func TestNATErrors(t *testing.T) {
	eachKind(t, func(t *testing.T, v6, udp bool) {
		f := newNATFixture(t, natServers()...)
		sent := natPacket(v6, udp, 1000, wire.SYN)
		there := f.in(sent)
		answer := serverSays(*there.packet)
		back := f.out(answer)
		kind, header := byte(3), 20
		if v6 {
			kind, header = 1, 40
		}
		// As they are on the wire where the error is made: of the mux's packets the hop count is the mux's.
		sent.TTL, answer.TTL = 63, 63
		for _, quote := range []int{header + 8, header + 12, header + 18, header + 19, header + 20, header + 25, 1000} {
			frame, want := natError(*back.packet, answer, kind, 4, quote)
			want.DstMAC, want.SrcMAC = muxRouter, testMAC(ingress)
			want.Src = there.packet.Src
			f.checkNAT(frame, natWant{reason: "forwarded", noted: []string{"icmp_error_forwarded"}, packet: &want})
			frame, want = natError(*there.packet, sent, kind, 4, quote)
			want.DstMAC, want.SrcMAC = muxRouter, muxSelf
			f.checkNAT(frame, natWant{reason: "nat_replied", noted: []string{"icmp_error_forwarded"}, packet: &want})
		}
		stranger := natPacket(v6, udp, 1001, wire.SYN)
		frame, _ := natError(serverSays(stranger), stranger, kind, 4, 1000)
		f.checkNAT(frame, natWant{reason: "icmp_error_unknown", noted: []string{"icmp_error_forwarded"}})
		unknown := *there.packet
		unknown.Dst = sent.Src
		frame, _ = natError(unknown, sent, kind, 4, 1000)
		f.checkNAT(frame, natWant{reason: "nat_unknown"})
		f.sweep()
	})
}

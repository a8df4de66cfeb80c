package loop

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// unreachableAbout returns the ICMP error of a router about an echo request, of which it quotes the
// given number of bytes.
func unreachableAbout(v6 bool, to netip.Addr, request []byte, quoted int) []byte {
	about := make([]byte, echoHeader, 128)
	var header []byte
	if about[0] = unreachable4; v6 {
		about[0], header = unreachable6, make([]byte, 40)
		header[6] = 58
		copy(header[24:], to.AsSlice())
	} else {
		about[1], header = 1, make([]byte, 20)
		header[0], header[9] = 0x45, 1
		copy(header[16:], to.AsSlice())
	}
	return append(append(about, header...), request[:quoted]...)
}

// TestRoutersMustProveWhatTheyQuote checks that an error without the nonce of the request, or with
// a wrong one, is ignored. The verdict then depends on the answer, or the timeout.
func TestRoutersMustProveWhatTheyQuote(t *testing.T) {
	for _, to := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} {
		v6 := to.Is6()
		c := check(lb.CheckICMP, long, nil)
		q, err := newQuestion(&c)
		if err != nil {
			t.Fatal(err)
		}
		l := newLoop(Options{InFlight: 1, Loops: 1}, 1, nil)
		defer l.end()
		const nonce, slotNumber = 0x0123456789abcdef, 2
		l.slots = make([]slot, slotNumber+1)
		for i := range l.slots {
			l.slots[i].fd = -1
		}
		l.slots[slotNumber] = slot{fd: -1, class: echo, phase: talking, id: 9, target: newTarget(netip.AddrPortFrom(to, 0), q), nonce: nonce}
		l.room.enter(false)
		hear := func(nonce uint64, quoted int) []probe.Answer {
			t.Helper()
			request := echoRequest(v6, 77, slotNumber, nonce)
			h, ok := readEcho(v6, unreachableAbout(v6, to, request, quoted))
			if !ok {
				t.Fatalf("%v: %d bytes are not understood", to, quoted)
			}
			l.heardEcho(h, netip.MustParseAddr("198.51.100.1"))
			return l.answers
		}
		for quoted := echoHeader; quoted < echoHeader+echoNonce; quoted++ {
			if got := hear(nonce, quoted); len(got) > 0 {
				t.Fatalf("%v: %d bytes were believed: %+v", to, quoted, got)
			}
		}
		if got := hear(nonce+1, echoHeader+echoNonce); len(got) > 0 {
			t.Fatalf("%v: a guess was believed: %+v", to, got)
		}
		if n := l.unproven.Load(); n != echoNonce {
			t.Errorf("%v: %d counted, want %d", to, n, echoNonce)
		}
		request := echoRequest(v6, 77, slotNumber, nonce)
		if binary.BigEndian.Uint64(request[echoHeader:]) != nonce {
			t.Errorf("%v: the nonce is not in the request", to)
		}
		if got := hear(nonce, echoHeader+echoNonce); len(got) != 1 || got[0].ID != 9 || got[0].Verdict != probe.Bad || !got[0].Silent {
			t.Errorf("%v: got %+v", to, got)
		}
	}
}

package host

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

var waitingStart = time.Unix(1_700_000_000, 0)

// waitingFrameOf returns a frame of a DIP that begins an IPv4 packet and contains n.
func waitingFrameOf(dip netip.Addr, n uint32) []byte {
	f := make([]byte, 60)
	f[12], f[13] = 8, 0
	a := dip.As4()
	copy(f[26:], a[:])
	binary.BigEndian.PutUint32(f[40:], n)
	return f
}

// frameNumbers returns the numbers that frames were made with.
func frameNumbers(frames [][]byte) []uint32 {
	var out []uint32
	for _, f := range frames {
		out = append(out, binary.BigEndian.Uint32(f[40:]))
	}
	return out
}

func equalNumbers(t *testing.T, what string, got [][]byte, want ...uint32) {
	t.Helper()
	n := frameNumbers(got)
	if len(n) != len(want) {
		t.Fatalf("%s: %v, want %v", what, n, want)
	}
	for i := range n {
		if n[i] != want[i] {
			t.Fatalf("%s: %v, want %v", what, n, want)
		}
	}
}

// TestWaiting checks that packets wait in order of arrival, up to a number for each DIP, are sent
// on when their DIP gets ports, and expire.
func TestWaiting(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	w, now := newWaiting(3), waitingStart
	arrive := func(dip netip.Addr, n uint32) ([][]byte, bool) {
		t.Helper()
		f := waitingFrameOf(dip, n)
		if got, ok := waitingDIP(f); !ok || got != dip {
			t.Fatalf("frame of %s: %s %v", dip, got, ok)
		}
		return w.arrive(dip, f, now)
	}
	for n := range uint32(3) {
		if send, ok := arrive(a, n); !ok || len(send) != 0 {
			t.Fatalf("packet %d: sent %v, taken %v", n, frameNumbers(send), ok)
		}
	}
	if _, ok := arrive(a, 3); ok {
		t.Error("a fourth packet was taken")
	}
	if _, ok := arrive(b, 10); !ok {
		t.Error("another DIP's packet was not")
	}
	equalNumbers(t, "ports for a", w.ports(a, now), 0, 1, 2)

	// There was no port for the second after all. It waits for the next ones.
	if send, ok := arrive(a, 1); !ok || len(send) != 0 {
		t.Fatalf("a packet that came back: sent %v, taken %v", frameNumbers(send), ok)
	}
	// A packet that was on its way when ports arrived is sent on once. A returned packet is not
	// sent on with it.
	send, _ := arrive(a, 4)
	equalNumbers(t, "late", send, 4)
	if send, _ := arrive(a, 4); len(send) != 0 {
		t.Fatalf("it was tried twice: %v", frameNumbers(send))
	}
	equalNumbers(t, "new ports", w.ports(a, now), 1, 4)

	// Being sent on does not extend the total wait.
	now = now.Add(waitingPatience - time.Millisecond)
	arrive(a, 4)
	arrive(a, 5)
	if out := w.expire(now); len(out) != 0 {
		t.Fatalf("dropped %v early", out)
	}
	now = now.Add(time.Millisecond)
	if out := w.expire(now); out[a] != 1 || out[b] != 1 {
		t.Fatalf("dropped %v, want one of each", out)
	}
	equalNumbers(t, "the rest", w.ports(a, now), 5)
	now = now.Add(waitingPatience)
	w.expire(now)
	if len(w.dips) != 0 || len(w.sent) != 0 {
		t.Fatalf("left: %d DIPs, %d frames known", len(w.dips), len(w.sent))
	}
	for _, f := range [][]byte{nil, make([]byte, 33), make([]byte, 60)} {
		if _, ok := waitingDIP(f); ok {
			t.Errorf("a frame of %d bytes without IPv4 has a DIP", len(f))
		}
	}
}

// TestWaitingInOrder checks that packets of a DIP are sent on in order of arrival, in random
// sequences.
func TestWaitingInOrder(t *testing.T) {
	dip := netip.MustParseAddr("10.0.0.1")
	for seed := range uint32(200) {
		w, now := newWaiting(64), waitingStart
		var came, went []uint32
		x := seed*2654435761 + 1
		for n := range uint32(300) {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			now = now.Add(time.Duration(x%20) * time.Millisecond)
			if x%5 == 0 {
				went = append(went, frameNumbers(w.ports(dip, now))...)
				continue
			}
			send, ok := w.arrive(dip, waitingFrameOf(dip, n), now)
			if ok {
				came = append(came, n)
			}
			went = append(went, frameNumbers(send)...)
		}
		went = append(went, frameNumbers(w.ports(dip, now))...)
		if len(came) != len(went) {
			t.Fatalf("seed %d: %d came, %d went", seed, len(came), len(went))
		}
		for i := range came {
			if came[i] != went[i] {
				t.Fatalf("seed %d: number %d went as %d-th, want %d", seed, went[i], i, came[i])
			}
		}
	}
}

package cookie

import (
	"fmt"
	"testing"
)

// opened is a connection whose handshake came through at time 0 of a server whose timestamps begin at base.
func opened(n TimeBits, base uint32) *journey {
	j := &journey{n: n, host: newEVCHost(n, 0x1234), base: base}
	j.client.take(j.answer(base, false), true)
	j.back(j.client.recent)
	return j
}

// push sends a segment of the server after a silence and says whether the client took it.
func (j *journey) push(silence uint32) bool {
	j.now += silence
	accepted, falsely := j.client.take(j.send(j.base+j.now), true)
	if falsely {
		j.falsely++
	}
	return accepted
}

// TestEVCSilence is T1: after silences around the edges of the clock a server's push is taken, and a client's comes back exactly.
func TestEVCSilence(t *testing.T) {
	half := HostBits.Half()
	for _, silence := range []uint32{half / 2, half - 1, half, half + 1, 2*half - 1, 2 * half, 2*half + 1, 10 * half} {
		for _, base := range []uint32{0, 7 - half, 1<<31 - 5, 0x12345678} {
			t.Run(fmt.Sprintf("%d from %#x", silence, base), func(t *testing.T) {
				j := opened(HostBits, base)
				for range 20 {
					if !j.push(silence) {
						t.Fatal("the server's push is rejected")
					}
					before := j.exact
					if j.back(j.client.recent); j.exact == before {
						t.Fatalf("the echo of the push: %s", j.worst)
					}
					j.now += silence
					if j.back(j.client.recent); j.exact == before+1 {
						t.Fatalf("the client's push: %s", j.worst)
					}
				}
			})
		}
	}
}

// TestEVCBlackHole is T2: of what a server repeats while nothing arrives, what arrives in the end is taken, and the answer is no wrong one.
func TestEVCBlackHole(t *testing.T) {
	for _, timeouts := range []int{1, 10, 100} {
		j := opened(HostBits, 0xfffff000)
		j.push(10)
		j.back(j.client.recent)
		wait := uint32(200)
		for range timeouts {
			j.now += wait
			j.send(j.base + j.now)
			wait = min(2*wait, 120_000)
		}
		if !j.push(wait) {
			t.Fatalf("rejected after %d timeouts", timeouts)
		}
		j.back(j.client.recent)
		if j.wrong != 0 {
			t.Fatalf("after %d timeouts: %s", timeouts, j.worst)
		}
		for range 3 {
			if !j.push(30) {
				t.Fatalf("rejected after the answer")
			}
			j.back(j.client.recent)
		}
		if j.wrong != 0 || j.exact < 5 {
			t.Fatalf("after %d timeouts %d echoes exact, %d zero, %d wrong: %s", timeouts, j.exact, j.none, j.wrong, j.worst)
		}
	}
}

// TestEVCAnswersRepeated is T3: whichever SYN-ACK of 63 seconds the client has, its echo comes back exactly, for a kernel that compares it with what it sent.
func TestEVCAnswersRepeated(t *testing.T) {
	times := []uint32{0, 1000, 3000, 7000, 15_000, 31_000, 63_000}
	for at := range times {
		j := &journey{n: HostBits, host: newEVCHost(HostBits, 0x8001), base: 0xffff8000}
		for i, now := range times {
			if s := j.answer(j.base+now, i > 0); i == at {
				j.client.take(s, true)
			}
		}
		j.now = times[len(times)-1]
		j.back(j.client.recent)
		if j.exact != 1 {
			t.Fatalf("SYN-ACK %d: %s", at, j.worst)
		}
		for range 3 {
			if !j.push(5) {
				t.Fatalf("SYN-ACK %d: data is rejected", at)
			}
			j.back(j.client.recent)
		}
		if j.wrong != 0 || j.exact < 3 {
			t.Fatalf("SYN-ACK %d: %d exact, %d zero, %d wrong: %s", at, j.exact, j.none, j.wrong, j.worst)
		}
	}
}

// TestEVCMicroseconds: a server whose timestamps count microseconds (tcp_usec_ts) reads its first echo back exactly however long the way, and what it sends
// is taken; longer ways than half a clock leave later echoes zero.
func TestEVCMicroseconds(t *testing.T) {
	for _, way := range []uint32{100, 20_000, 70_000, 300_000} {
		j := &journey{n: HostBits, host: newEVCHost(HostBits, 0x1234), base: 0x89abcdef}
		j.client.take(j.answer(j.base, false), true)
		if way > 200_000 {
			j.answer(j.base+1_000_000, true) // of a SYN that was repeated
		}
		j.now += way
		j.back(j.client.recent)
		if j.exact != 1 {
			t.Fatalf("%d µs: the third segment: %s", way, j.worst)
		}
		for range 50 {
			for range 3 {
				if !j.push(way / 3) {
					t.Fatalf("%d µs: rejected", way)
				}
			}
			j.back(j.client.recent)
		}
		if j.wrong != 0 || way < 30_000 && j.none != 0 {
			t.Fatalf("%d µs: %d exact, %d zero, %d wrong: %s", way, j.exact, j.none, j.wrong, j.worst)
		}
	}
}

// TestEVCWeeks: a connection that is never silent for long works as well after 60 days, which is longer than the differences of its times reach.
func TestEVCWeeks(t *testing.T) {
	j := opened(HostBits, 0x1000)
	for range 60 * 24 * 3600 / 16 {
		if !j.push(16_384) {
			t.Fatalf("rejected after %d days: %+v", j.now/86_400_000, j.host.(*evcHost).EVC)
		}
		if got, want := j.client.recent.w, HostBits.Place(j.client.recent.t, 0x1234); got != want {
			t.Fatalf("after %d days: stamp %#x, want %#x", j.now/86_400_000, got, want)
		}
		j.back(j.client.recent)
	}
	if j.wrong != 0 || j.none > 1 { // one echo is of the server's time 0
		t.Fatalf("%d exact, %d zero, %d wrong: %s", j.exact, j.none, j.wrong, j.worst)
	}
}

// TestEVCPlain: with nothing unusual every echo comes back exactly, and stamps are the server's own times beside the cookie.
func TestEVCPlain(t *testing.T) {
	j := opened(HostBits, 0xdeadbeef)
	for i := range uint32(10_000) {
		if !j.push(1 + i%3000) {
			t.Fatal("rejected")
		}
		if got, want := j.client.recent.w, HostBits.Place(j.client.recent.t, 0x1234); got != want {
			t.Fatalf("stamp %#x, want %#x", got, want)
		}
		j.back(j.client.recent)
	}
	if j.none+j.wrong != 0 {
		t.Fatalf("%d exact, %d zero, %d wrong: %s", j.exact, j.none, j.wrong, j.worst)
	}
}

// TestEVCOtherConnection: a SYN-ACK begins anew, whatever the state was; an echo of the connection before does not count.
func TestEVCOtherConnection(t *testing.T) {
	j := opened(HostBits, 0x20000000)
	j.push(100)
	former := j.client.recent
	j.now += 10_000
	h := j.host.(*evcHost)
	h.want = 0x0777
	h.valid[0x0777] = true
	answer := j.answer(j.base+j.now, false)
	if answer.w != HostBits.Place(answer.t, 0x0777) || h.Kind != EVCOpening {
		t.Fatalf("stamp %#x, %+v", answer.w, h.EVC)
	}
	if got, ours := h.Echo(HostBits, former.w); got != 0 || ours || h.Kind != EVCOpening {
		t.Fatalf("the former connection's echo: %d, %v, %+v", got, ours, h.EVC)
	}
	if got, ours := h.Echo(HostBits, answer.w); got != answer.t || !ours || h.Kind != EVCLive {
		t.Fatalf("the first echo: %d, %v, %+v", got, ours, h.EVC)
	}
}

// TestEVCForeignEcho: an echo with another cookie changes nothing, and the server reads none.
func TestEVCForeignEcho(t *testing.T) {
	j := opened(HostBits, 77)
	j.push(1000)
	h := j.host.(*evcHost)
	before := h.EVC
	for _, cookie := range []uint32{0, 0x1235, 0x9234, 0xffff} {
		if got, ours := h.Echo(HostBits, HostBits.Place(before.VLast, cookie)); got != 0 || !ours || h.EVC != before {
			t.Errorf("cookie %#x: %d, %v, %+v", cookie, got, ours, h.EVC)
		}
	}
}

// TestEVCOvertaken: a segment with the former cookie that another processor sent at once with the first one of a lower cookie, and that came first, takes the
// new cookie back: the client would take it for old.
func TestEVCOvertaken(t *testing.T) {
	j := opened(HostBits, 5)
	h := j.host.(*evcHost)
	h.Cookie, h.want = 0x9234, 0x1111
	j.push(1000)
	if !h.Minting || h.Cookie != 0x1111 {
		t.Fatalf("%+v", h.EVC)
	}
	if _, ours := h.Echo(HostBits, HostBits.Place(h.VLast+1, 0x9234)); !ours {
		t.Fatal("not ours")
	}
	// The echo is later than all that was sent: only what is known to have been sent counts.
	h.VLast++
	if _, ours := h.Echo(HostBits, HostBits.Place(h.VLast, 0x9234)); !ours || h.Minting || h.Cookie != 0x9234 {
		t.Fatalf("%v, %+v", ours, h.EVC)
	}
}

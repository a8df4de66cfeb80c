package cookie

import (
	"fmt"
	"testing"
)

// opened returns a connection with a completed handshake at time 0 of a server whose timestamps
// begin at base.
func opened(n TimeBits, base uint32) *journey {
	j := &journey{n: n, host: newEVCHost(n, 0x1234), base: base}
	j.client.take(j.answer(base, false), true)
	j.back(j.client.recent)
	return j
}

// push sends a segment of the server after a silence and reports whether the client accepted it.
func (j *journey) push(silence uint32) bool {
	j.now += silence
	accepted, falsely := j.client.take(j.send(j.base+j.now), true)
	if falsely {
		j.falsely++
	}
	return accepted
}

// TestEVCSilence is T1: after silences around the boundaries of the clock a segment of the server
// is accepted, and the client's echo is restored exactly.
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

// TestEVCBlackHole is T2: of segments that a server repeats while none arrives, the one that
// arrives in the end is accepted, and its echo is not restored wrongly.
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

// TestEVCAnswersRepeated is T3: whichever SYN-ACK of 63 seconds the client has, its echo is
// restored exactly, for a kernel that compares it with its own timestamps.
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

// TestEVCMicroseconds: a server whose timestamps count microseconds (tcp_usec_ts) reads its first
// echo back exactly for any latency, and its segments are accepted; with a latency longer than half
// a clock later echoes are zero.
func TestEVCMicroseconds(t *testing.T) {
	for _, way := range []uint32{100, 20_000, 70_000, 300_000} {
		j := &journey{n: HostBits, host: newEVCHost(HostBits, 0x1234), base: 0x89abcdef}
		j.client.take(j.answer(j.base, false), true)
		if way > 200_000 {
			j.answer(j.base+1_000_000, true) // for a repeated SYN
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

// TestEVCWeeks: a connection without long silences still works after 60 days, which exceeds the
// range of its time differences.
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

// TestEVCPlain: in the normal case every echo is restored exactly, and stamps are the server's own
// times next to the cookie.
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

// TestEVCOtherConnection: a SYN-ACK starts a new state, whatever the old one was; an echo of the
// earlier connection does not count.
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

// TestEVCForeignEcho: an echo with another cookie changes nothing, and the server reads 0.
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

// TestEVCOvertaken: if a segment with the previous cookie, sent by another processor at the same
// time as the first one of a lower cookie, arrives first, the cookie change is reverted, because
// the client would consider the new cookie old.
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
	// The echo is later than every V that was sent: only a V that was sent counts.
	h.VLast++
	if _, ours := h.Echo(HostBits, HostBits.Place(h.VLast, 0x9234)); !ours || h.Minting || h.Cookie != 0x9234 {
		t.Fatalf("%v, %+v", ours, h.EVC)
	}
}

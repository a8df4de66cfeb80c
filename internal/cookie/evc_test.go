package cookie

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// drawJourney draws a connection: seed, n from 8 to 16, cookie.
func drawJourney(t *rapid.T) *journey {
	n := TimeBits(rapid.Uint8Range(8, 16).Draw(t, "n"))
	cookie := rapid.Uint16().Draw(t, "cookie")
	if rapid.IntRange(0, 7).Draw(t, "nothing") == 0 {
		cookie = 0
	}
	seed := rapid.Uint64().Draw(t, "seed")
	return &journey{r: rand.New(rand.NewPCG(seed, 7)), n: n, host: newEVCHost(n, cookie), jitter: rapid.Bool().Draw(t, "jitter")}
}

// judge fails if a segment was rejected without need, or an echo was restored to a wrong timestamp.
func (j *journey) judge(t *rapid.T) {
	if j.falsely != 0 || j.wrong != 0 {
		t.Fatalf("%d of %d segments falsely rejected, of the echoes %d exact, %d zero, %d wrong: %s", j.falsely, j.sent, j.exact, j.none, j.wrong, j.worst)
	}
}

// TestEVC is T13 (protocol section 1.7): with any silence, loss or disorder, a strict client
// rejects no segment that arrives in order, and the server reads its own timestamps back, or 0
// (Theorems 1 and 2).
func TestEVC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJourney(t)
		j.disorder = rapid.Bool().Draw(t, "disorder")
		j.run(2000)
		j.judge(t)
		if j.exact < 12*j.none {
			t.Fatalf("%d echoes were exact, and %d zero", j.exact, j.none)
		}
	})
}

// TestEVCRemints is T8: the same holds while cookies change (Theorem 3).
func TestEVCRemints(t *testing.T) {
	mints := 0
	rapid.Check(t, func(t *rapid.T) {
		j := drawJourney(t)
		j.remints, j.disorder = true, rapid.Bool().Draw(t, "disorder")
		j.run(2000)
		j.judge(t)
		mints += j.host.(*evcHost).mints
	})
	if mints == 0 {
		t.Error("no cookie ever changed")
	}
}

// TestEVCStateLost is T9: the same holds when the host repeatedly loses its state.
func TestEVCStateLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJourney(t)
		j.loses = true
		j.run(2000)
		j.judge(t)
	})
}

// TestEVCStateLostWhileReminting: the lost state may have had a new cookie that the client received
// and has not echoed yet. Then a segment with the old cookie may be rejected, and the reply to it
// restores the state: the third round trip without loss is normal.
func TestEVCStateLostWhileReminting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJourney(t)
		j.loses, j.remints = true, true
		j.run(500)
		if j.wrong != 0 || j.falsely != 0 && j.losses == 0 {
			t.Fatalf("%d of %d segments falsely rejected with %d losses, %d echoes wrong: %s", j.falsely, j.sent, j.losses, j.wrong, j.worst)
		}
		for range 3 {
			j.calm()
		}
		if accepted, exact := j.calm(); !accepted || !exact {
			t.Fatalf("accepted %v, exact %v: %+v", accepted, exact, j.host.(*evcHost).EVC)
		}
	})
}

// TestCheetahFails: the paper's encoding fails the test that EVC passes, so the test detects such
// errors.
func TestCheetahFails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJourney(t)
		j.host = &cheetah{n: j.n, cookie: 0x1234}
		j.run(2000)
		if j.falsely == 0 {
			t.Fatalf("none of %d segments was falsely rejected", j.sent)
		}
	})
}

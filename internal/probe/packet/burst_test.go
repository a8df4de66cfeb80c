package packet

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// simBurstMode is the behaviour of a sim's bursts.
type simBurstMode int

const (
	burstsNone  simBurstMode = iota // they cannot be opened
	burstsWork                      // each frame is sent
	burstsLost                      // the device drops all, without an error
	burstsStall                     // some frames are sent, the others are given back
	burstsFail                      // the kernel refuses them, after the first was begun
)

// simBurst is a dataplane.Burst of a sim. It sends a few frames at each call of Sent.
type simBurst struct {
	sim    *sim
	mode   simBurstMode
	quick  bool
	frames []dataplane.BurstFrame
	at     []int64
	n      int // frames of the burst
	sent   int
	idleAt int64
	failed bool
}

// openBursts enables bursts in the sim's core.
func (s *sim) openBursts(mode simBurstMode, quick bool, least int) {
	var said []error
	s.core.bursts = newBursts(func(quickly bool) (dataplane.Burst, error) {
		if mode == burstsNone || quickly && !quick {
			return nil, errors.New("none here")
		}
		if !quickly && len(said) != 1 {
			s.t.Fatalf("a long burst is made, and why is said %d times", len(said))
		}
		return &simBurst{sim: s, mode: mode, quick: quickly, frames: make([]dataplane.BurstFrame, dataplane.BurstFrames), at: make([]int64, dataplane.BurstFrames)}, nil
	}, func(err error) { said = append(said, err) })
	s.core.bursts.least, s.core.bursts.leastLong = least, least
}

// Put implements dataplane.Burst.
func (b *simBurst) Put(i int, f dataplane.BurstFrame) error {
	f.Data = slices.Clone(f.Data)
	b.frames[i] = f
	return nil
}

// Start implements dataplane.Burst.
func (b *simBurst) Start(n, window int, _ time.Duration) {
	if b.sim.now < b.idleAt || n < 1 || window < 1 {
		b.sim.t.Fatalf("a burst of %d frames in a window of %d, before the last one is over: %t", n, window, b.sim.now < b.idleAt)
	}
	b.n, b.sent, b.idleAt = n, 0, b.sim.now+int64(25*time.Millisecond)
	b.failed = b.mode == burstsFail
	if b.quick {
		b.idleAt = b.sim.now
		for ended := false; !ended; {
			_, ended = b.Sent()
		}
	}
}

// Sent implements dataplane.Burst.
func (b *simBurst) Sent() (int, bool) {
	limit := b.n
	switch b.mode {
	case burstsStall:
		limit = b.n / 3
	case burstsFail:
		limit = 0
	}
	for range 5 {
		if b.sent == limit {
			return b.sent, true
		}
		f := b.frames[b.sent]
		if number := uint32(binary.BigEndian.Uint16(f.Data[len(f.Data)-tcpHeader+2:]) - 1000); number != f.Number || binary.BigEndian.Uint32(f.Data[len(f.Data)-tcpHeader+4:]) != f.ISN {
			b.sim.t.Fatalf("a frame of rule %d and another round is sent for rule %d, round %d", number, f.Number, f.ISN)
		}
		if b.mode == burstsLost {
			b.sim.script[f.Number][0].after = 0
		}
		b.at[b.sent] = b.sim.now
		b.sent++
		b.sim.arrive(f.Data)
	}
	return b.sent, b.sent == limit
}

// At implements dataplane.Burst.
func (b *simBurst) At(i int) int64 { return b.at[i] }

// Idle implements dataplane.Burst.
func (b *simBurst) Idle() (bool, error) {
	if b.failed {
		return true, errors.New("not supported")
	}
	return b.sim.now >= b.idleAt, nil
}

// Close implements dataplane.Burst.
func (b *simBurst) Close() error { return nil }

// TestBurstsNobodyAnswersCostAnAttempt checks that the first burst, which is small, detects a
// device that loses bursts, and that no verdict is wrong.
func TestBurstsNobodyAnswersCostAnAttempt(t *testing.T) {
	r := newRig(t)
	r.serve(8000, say(answer200))
	must(t, r.servers.SetOffload("eth0", netdev.OffloadGRO, false))
	ids := r.add(many(3000, 1, within(2*time.Second, tcp))...)
	r.resolve(targets.Addr().Next())
	// Probe once only: resets are lost, and servers remember the ports.
	for id, a := range r.ask(ids) {
		if a.Verdict != probe.Good {
			t.Fatalf("probe %d: %+v", id, a)
		}
	}
	r.asker.mu.Lock()
	defer r.asker.mu.Unlock()
	b := &r.asker.core.bursts
	if len(b.all) == 0 {
		t.Fatal("no burst was tried")
	}
	for ifindex, trust := range b.trusts {
		if trust.proven || trust.until == 0 {
			t.Errorf("device %d, which takes no bursts: %+v", ifindex, trust)
		}
	}
}

// TestAnswersToBurstsProveTheDevice checks that a device that takes bursts becomes proven.
func TestAnswersToBurstsProveTheDevice(t *testing.T) {
	r := newRig(t)
	r.serve(8000, say(answer200))
	ids := r.add(many(3000, 1, tcp)...)
	r.resolve(netip.MustParseAddr("10.30.0.1"))
	for proven := false; !proven; {
		for id, a := range r.ask(ids) {
			if a.Verdict != probe.Good {
				t.Fatalf("probe %d: %+v", id, a)
			}
		}
		r.asker.mu.Lock()
		b := &r.asker.core.bursts
		if b.open == nil {
			t.Fatal("this kernel sends no bursts")
		}
		for _, trust := range b.trusts {
			proven = proven || trust.proven
			trust.until = 0
		}
		r.asker.mu.Unlock()
	}
}

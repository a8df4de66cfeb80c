package snat

import (
	"testing"
	"time"
)

// stockWithLimit is the host pool of a DIP at its limit, with a clock.
type stockWithLimit struct {
	t     *testing.T
	stock *Stock
	now   time.Time
}

func newStockWithLimit(t *testing.T, ranges ...Range) *stockWithLimit {
	s := &stockWithLimit{t: t, stock: NewStock(DefaultStockRules), now: time.Unix(1_700_000_000, 0)}
	if said, ok := s.stock.Tick(s.now); !ok || !said.Sync {
		t.Fatalf("a stock begins with %+v, want a request for everything", said)
	}
	s.stock.Hear(Answer{Kind: All, Ranges: ranges, Revision: 1}, 1, s.now)
	return s
}

// asks returns the number of requests during d, each of which is refused.
func (s *stockWithLimit) asks(d time.Duration) (n int) {
	for end := s.now.Add(d); s.now.Before(end); s.now = s.now.Add(100 * time.Millisecond) {
		usable, _ := s.stock.Usable()
		for _, r := range usable {
			s.stock.Used(r, s.now)
		}
		if said, ok := s.stock.Tick(s.now); ok && said.Ask {
			n++
			s.stock.Hear(Answer{Kind: Refused, Reason: ReasonDIPLimit}, 1, s.now)
		}
	}
	return n
}

// TestRefusedStockAsksWhileItNeedsPorts: requests stop after the connections that needed the ports
// have ended.
func TestRefusedStockAsksWhileItNeedsPorts(t *testing.T) {
	s := newStockWithLimit(t, 128, 129)
	s.stock.Low()
	if n := s.asks(time.Hour); n != 1 {
		t.Errorf("%d asks in an hour after ports got scarce once, want 1", n)
	}
	s.stock.Low()
	if n := s.asks(500 * time.Millisecond); n != 1 {
		t.Errorf("%d asks when ports got scarce again, want 1", n)
	}
	// While ports stay scarce it requests once a second.
	n := 0
	for range 100 {
		s.stock.Low()
		n += s.asks(100 * time.Millisecond)
	}
	if n < 9 || n > 10 {
		t.Errorf("%d asks in 10 s of scarce ports, want one a second", n)
	}
	s.stock.Low()
	s.now = s.now.Add(time.Second)
	if said, _ := s.stock.Tick(s.now); !said.Ask {
		t.Fatal("does not ask")
	}
	s.stock.Hear(Answer{Kind: Granted, Ranges: []Range{130}, Revision: 2}, 1, s.now)
	if n := s.asks(time.Hour); n != 0 {
		t.Errorf("%d asks after a grant, want none", n)
	}
}

// TestEmptyStockAsksLessAndLess: a DIP without any range keeps requesting with backoff, because it
// will need one, and the VIP may be exhausted for long.
func TestEmptyStockAsksLessAndLess(t *testing.T) {
	s := newStockWithLimit(t)
	if n := s.asks(time.Hour); n < 110 || n > 120 {
		t.Errorf("%d asks in an hour, want some 117: after 1, 2, 4, 8, 16 s, then every 32 s", n)
	}
	s.stock.Low()
	if n := s.asks(2 * time.Second); n == 0 {
		t.Error("no ask within 2 s of a packet that needs a port")
	}
}

// TestIdleTime: unused ranges are returned after the DIP's own idle time, else after that of the
// rules; a change applies immediately.
func TestIdleTime(t *testing.T) {
	for _, idle := range []time.Duration{0, 30 * time.Second, time.Hour} {
		s := newStockWithLimit(t, 128, 129, 130)
		s.stock.SetIdle(time.Minute)
		s.stock.SetIdle(idle)
		want := idle
		if idle == 0 {
			want = DefaultStockRules.Idle
		}
		if due := s.stock.Due(s.now); due.Sub(s.now) != want {
			t.Errorf("idle %v: due in %v, want %v", idle, due.Sub(s.now), want)
		}
		s.now = s.now.Add(want - 1)
		if said, ok := s.stock.Tick(s.now); ok {
			t.Errorf("idle %v: sent %+v before it has passed", idle, said)
		}
		s.now = s.now.Add(1)
		if said, ok := s.stock.Tick(s.now); !ok || len(said.Return) != 3-DefaultStockRules.Keep {
			t.Errorf("idle %v: sent %+v when it has passed, want one range", idle, said)
		}
	}
}

package remote

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/bgp"
)

func state(vips ...string) bgp.State {
	s := bgp.State{
		ASN: 65010, RouterID: netip.MustParseAddr("10.10.0.11"),
		Peers: []bgp.Peer{{Address: netip.MustParseAddr("10.10.0.1"), ASN: 65000}},
	}
	for _, v := range vips {
		a := netip.MustParseAddr(v)
		s.Routes = append(s.Routes, bgp.Route{Prefix: netip.PrefixFrom(a, a.BitLen()), NextHop: netip.MustParseAddr("10.10.0.11")})
	}
	return s
}

func TestKeeper(t *testing.T) {
	const hold = 30 * time.Second
	now := time.Unix(1000, 0)
	k := NewKeeper(hold)
	expect := func(what string, routes int, why string) {
		t.Helper()
		got, _ := k.Announce(now)
		if len(got.Routes) != routes || k.Why(now) != why {
			t.Fatalf("%s: %d routes (%s), want %d (%s)", what, len(got.Routes), k.Why(now), routes, why)
		}
		if k.spoken && len(got.Peers) != 1 {
			t.Fatalf("%s: sessions must stay", what)
		}
	}
	expect("at first", 0, "no agent has spoken yet")
	k.Set(now, state("203.0.113.10"))
	expect("before the first heartbeat", 0, "the data plane is not attached")
	k.Heartbeat(true)
	expect("heartbeat, but the agent spoke before it", 0, "the agent has not confirmed the data plane yet")
	k.Set(now, state("203.0.113.10"))
	expect("both", 1, "")

	now = now.Add(hold)
	expect("agent away for the hold time", 1, "")
	now = now.Add(time.Nanosecond)
	expect("agent away for longer", 0, "the agent is away")
	k.Set(now, state("203.0.113.10", "203.0.113.11"))
	expect("a new agent", 2, "")

	k.Heartbeat(false)
	expect("data plane gone", 0, "the data plane is not attached")
	k.Heartbeat(true)
	expect("data plane back, tables unknown", 0, "the agent has not confirmed the data plane yet")
	k.Set(now, state("203.0.113.11"))
	expect("agent confirms", 1, "")
	k.Set(now, state())
	expect("agent wants nothing", 0, "")
}

// TestNothingIsAnnouncedWithoutAgentAndDataPlane checks the keeper against the whole history of
// events.
func TestNothingIsAnnouncedWithoutAgentAndDataPlane(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const hold = 10 * time.Second
		now := time.Unix(0, 0)
		k := NewKeeper(hold)
		var lastSet, lastBad time.Time // zero: never
		beating, set := false, false
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(1, int64(8*time.Second)).Draw(t, "later")))
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 3:
				if took := k.Alive(now, k.generation); took != set {
					t.Fatalf("at %v: a sign of life was taken: %v, want %v", now, took, set)
				}
				if k.Alive(now, k.generation+1) {
					t.Fatal("a sign of life of another state was taken")
				}
				if set {
					lastSet = now
				}
			case 0:
				k.Set(now, state("203.0.113.10"))
				lastSet, set = now, true
			case 1:
				beating = rapid.Bool().Draw(t, "beats")
				k.Heartbeat(beating)
				if !beating {
					lastBad = now
				}
			}
			if !beating {
				lastBad = now
			}
			want := set && beating && lastSet.After(lastBad) && now.Sub(lastSet) <= hold
			announced, _ := k.Announce(now)
			if got := len(announced.Routes) == 1; got != want {
				t.Fatalf("at %v: announced %v, want %v (%s)", now, got, want, k.Why(now))
			}
		}
	})
}

package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
	"unique"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// sim is a core with fake tables and a simulated clock, and servers that answer some attempts after
// a while.
type sim struct {
	t      *rapid.T
	core   *core
	tables *dataplane.FakeProbes
	now    int64
	// script holds the reply to SYN number i of a target, with its delay; none to a lost SYN.
	script map[uint32][]reply
	due    []arrival
	syns   map[uint32]int
	most   int // highest number of probes in the window
	busy   int // number of calls of Send that return ErrBusy
	tunnel bool
}

// silentAttempts is the number of SYNs to a server that does not complete the handshake.
const silentAttempts = 3

type reply struct {
	after time.Duration // 0: never
	state dataplane.ProbeState
}

type arrival struct {
	at          int64
	number, isn uint32
	result      dataplane.ProbeResult
}

var simWay = netdev.NextHop{MAC: [6]byte{2}, Ifindex: 3, Source: netip.MustParseAddr("10.0.0.1"), Own: [6]byte{4}, Resolved: true}

func newSim(t *rapid.T, window int) *sim {
	s := &sim{t: t, tables: dataplane.NewFakeProbes(64), now: 1e9, script: map[uint32][]reply{}, syns: map[uint32]int{}}
	c := newCore(Options{Tables: s.tables, Sender: s, Random: rand.NewChaCha8([32]byte{}).Uint64, Window: window})
	s.core = &c
	s.core.wheel.now = s.now / millisecond
	return s
}

// Send implements Sender. The destination port of a frame identifies its target.
func (s *sim) Send(frames []Frame) (int, error) {
	if s.busy > 0 {
		s.busy--
		return 0, ErrBusy
	}
	for _, f := range frames {
		s.arrive(f.Data)
	}
	return len(frames), nil
}

// arrive schedules the server's reply to a frame.
func (s *sim) arrive(frame []byte) {
	tcp := frame[len(frame)-tcpHeader:]
	if tcp[13] != flagSYN {
		return
	}
	number := uint32(binary.BigEndian.Uint16(tcp[2:]) - 1000)
	i := s.syns[number]
	s.syns[number]++
	if i >= silentAttempts {
		s.t.Fatalf("rule %d: SYN number %d", number, i)
	}
	if r := s.script[number][i]; r.after > 0 {
		s.due = append(s.due, arrival{s.now + int64(r.after), number, binary.BigEndian.Uint32(tcp[4:]), dataplane.ProbeResult{State: r.state, Status: 200, Attempt: uint8(i)}})
	}
}

// Close implements Sender.
func (s *sim) Close() error { return nil }

// run steps until n answers arrived.
func (s *sim) run(n int) map[uint32]probe.Answer {
	got := map[uint32]probe.Answer{}
	for range 100_000 {
		wait := s.core.step(s.now)
		for _, a := range s.core.answers {
			if _, twice := got[a.ID]; twice {
				s.t.Fatalf("answered twice: %+v", a)
			}
			got[a.ID] = a
		}
		s.core.answers = s.core.answers[:0]
		s.most = max(s.most, len(s.core.young))
		if len(got) == n && wait < 0 {
			return got
		}
		if wait < 0 {
			s.t.Fatalf("the core sleeps with %d of %d answers", len(got), n)
		}
		s.now += int64(max(wait, 10*time.Microsecond))
		rest := s.due[:0]
		for _, a := range s.due {
			if a.at > s.now {
				rest = append(rest, a)
				continue
			}
			a.result.Time = uint64(a.at)
			s.tables.Answer(a.number, a.isn, a.result)
		}
		s.due = rest
	}
	s.t.Fatalf("no end: %d of %d answers", len(got), n)
	return nil
}

// expected returns the naive verdict: the first final state in time, whichever attempt it is of.
func expected(timeout time.Duration, replies []reply, heard bool) probe.Verdict {
	sentAt := []time.Duration{0, timeout / 4, timeout / 2}
	var best time.Duration
	state := dataplane.ProbeSilent
	for i, r := range replies {
		at := sentAt[i] + r.after
		// The next SYN is not sent after an answer arrived.
		if r.after == 0 || state.Final() && sentAt[i] > best || at > timeout || state.Final() && at >= best {
			continue
		}
		state, best = r.state, at
	}
	switch {
	case state == dataplane.ProbeAnswered:
		return probe.Good
	case state == dataplane.ProbeRefused, heard:
		return probe.Bad
	}
	return probe.Unsure
}

// TestCoreAgainstANaiveOracle checks that every probe is answered once, with the verdict of
// expected, whichever frames are lost.
func TestCoreAgainstANaiveOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.IntRange(1, 40).Draw(t, "window")
		s := newSim(t, window)
		mode := rapid.SampledFrom([]simBurstMode{burstsNone, burstsWork, burstsLost, burstsStall, burstsFail}).Draw(t, "bursts")
		s.openBursts(mode, rapid.Bool().Draw(t, "quick"), rapid.IntRange(1, 64).Draw(t, "least of a burst"))
		// silent ones leave the window soon enough
		n := uint32(rapid.IntRange(1, min(64, 8*window)).Draw(t, "rules"))
		timeout := 800 * time.Millisecond
		address := netip.MustParseAddr("10.9.9.9")
		var ids []uint32
		for id := range n {
			err := s.core.add(id, target(netip.AddrPortFrom(address, uint16(1000+id)), within(timeout, func(c *lb.Check) { c.Kind = lb.CheckTCP })))
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		if rapid.Bool().Draw(t, "way known") {
			s.core.hops(netdev.WaysOf(map[netip.Addr]netdev.NextHop{address: simWay}), s.now)
		}
		// A server that answered before may be silent once before it is bad.
		heard, doubted := map[uint32]bool{}, map[uint32]bool{}
		for range 3 {
			clear(s.syns)
			s.busy = rapid.IntRange(0, 3).Draw(t, "busy")
			for _, id := range ids {
				s.script[id] = nil
				for range silentAttempts {
					r := reply{state: rapid.SampledFrom([]dataplane.ProbeState{dataplane.ProbeAnswered, dataplane.ProbeAnswered, dataplane.ProbeRefused}).Draw(t, "state")}
					// Not near the times of attempts and the end, which may be some milliseconds
					// late.
					r.after = rapid.SampledFrom([]time.Duration{0, time.Microsecond, 3 * time.Millisecond, 90 * time.Millisecond, 275 * time.Millisecond}).Draw(t, "after")
					s.script[id] = append(s.script[id], r)
				}
			}
			s.core.ask(ids, s.now)
			if len(s.core.ways) == 1 {
				s.core.step(s.now)
				s.core.hops(netdev.WaysOf(map[netip.Addr]netdev.NextHop{address: simWay}), s.now)
			}
			for id, a := range s.run(len(ids)) {
				want := expected(timeout, s.script[id], heard[id] && doubted[id])
				if a.Verdict != want {
					t.Fatalf("rule %d with %v: %+v, want %v", id, s.script[id], a, want)
				}
				answered := expected(timeout, s.script[id], false) != probe.Unsure
				doubted[id] = !answered && heard[id]
				heard[id] = heard[id] || answered
			}
			if s.most > window && mode == burstsNone {
				t.Fatalf("%d probes in a window of %d", s.most, window)
			}
		}
		for _, id := range ids {
			s.core.remove(id)
		}
		if len(s.core.answers) != 0 || s.core.places.find.Len() != 0 {
			t.Fatalf("answers %v, destinations %v of nobody", s.core.answers, s.core.places.addresses())
		}
	})
}

// TestCoreWithoutAWay checks that probes that cannot be sent do not count against the server.
func TestCoreWithoutAWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := netip.MustParseAddrPort("10.9.9.9:1000")
		ask := func(s *sim, ways map[netip.Addr]netdev.NextHop, v probe.Verdict, words string) {
			t.Helper()
			s.script[0] = make([]reply, silentAttempts)
			x := target(at, within(time.Second, tcp))
			if s.tunnel {
				x = target(at, within(time.Second, func(c *lb.Check) { tcp(c); c.Through = lb.ThroughTunnel }))
				x.Tunnel = unique.Make(probe.Tunnel{VIP: netip.MustParseAddrPort("203.0.113.10:80"), Outer: at.Addr(), Encap: lb.EncapIPIP})
			}
			if err := s.core.add(0, x); err != nil {
				t.Fatal(err)
			}
			if ways != nil {
				s.core.hops(netdev.WaysOf(ways), s.now)
			}
			s.core.ask([]uint32{0}, s.now)
			if a := s.run(1)[0]; a.Verdict != v || a.Words != words {
				t.Fatalf("got %+v, want %v %q", a, v, words)
			}
			s.core.ask([]uint32{0}, s.now)
			s.core.remove(0)
			if a := s.core.answers; len(a) == 0 || a[len(a)-1].Verdict != v && a[len(a)-1].Verdict != probe.Void {
				t.Fatalf("removed while it was asked: %v", a)
			}
		}
		to := func(w netdev.NextHop) map[netip.Addr]netdev.NextHop {
			return map[netip.Addr]netdev.NextHop{at.Addr(): w}
		}
		ask(newSim(t, 8), nil, probe.Void, "no way to the server is known yet")
		ask(newSim(t, 8), to(netdev.NextHop{}), probe.Unsure, "no route to 10.9.9.9")
		ask(newSim(t, 8), to(netdev.NextHop{Ifindex: 3}), probe.Void, "the next hop does not answer")
		gone := newSim(t, 8)
		gone.core.hops(netdev.WaysOf(to(netdev.NextHop{Ifindex: 3})), gone.now)
		gone.now += int64(resolving)
		ask(gone, to(netdev.NextHop{Ifindex: 3}), probe.Unsure, "the next hop does not answer")
		for _, way := range []netdev.NextHop{{}, {Ifindex: 3}} {
			words := map[int]string{0: "no route to 10.9.9.9", 3: "the next hop does not answer"}[way.Ifindex]
			tunnelled := newSim(t, 8)
			tunnelled.tunnel = true
			ask(tunnelled, to(way), probe.Void, words)
			// Packets of clients have no other way.
			lost := newSim(t, 8)
			lost.tunnel = true
			lost.core.hops(netdev.WaysOf(to(way)), lost.now)
			lost.now += int64(resolving)
			ask(lost, to(way), probe.Bad, words)
		}
		noSource := newSim(t, 8)
		noSource.tunnel = true
		ask(noSource, to(simWay), probe.Void, "tunnel to 10.9.9.9: no tunnel source of its family")
		noAddress := newSim(t, 8)
		noAddress.tunnel, noAddress.core.sources = true, []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}
		v6 := simWay
		v6.Source = netip.MustParseAddr("2001:db8::1")
		ask(noAddress, to(v6), probe.Unsure, "no address of this machine for servers like 203.0.113.10")
		elsewhere := newSim(t, 8)
		elsewhere.core.devices = []int{4}
		ask(elsewhere, to(simWay), probe.Unsure, "the way to 10.9.9.9 does not lead out of an interface of the mux")
		down := newSim(t, 8)
		down.core.sender = nowhere{errDown}
		ask(down, to(simWay), probe.Void, "send: network is down")
		lost := newSim(t, 8)
		lost.core.sender = nowhere{}
		ask(lost, to(simWay), probe.Unsure, "no answer to three SYNs within 1000 ms")
	})
}

// TestADeviceThatIsBusyForEver checks that probes that cannot be sent end Void about at their
// timeout, also with different timeouts, and succeed once the device takes packets.
func TestADeviceThatIsBusyForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, rapid.IntRange(1, 200).Draw(t, "window"))
		s.tables = dataplane.NewFakeProbes(1024)
		s.core.tables = s.tables
		address := netip.MustParseAddr("10.9.9.9")
		s.core.hops(netdev.WaysOf(map[netip.Addr]netdev.NextHop{address: simWay}), s.now)
		n := rapid.IntRange(1, 500).Draw(t, "rules")
		timeouts := []time.Duration{300 * time.Millisecond, 800 * time.Millisecond}
		var ids []uint32
		for id := range uint32(n) {
			if err := s.core.add(id, target(netip.AddrPortFrom(address, uint16(1000+id)), within(timeouts[id%2], tcp))); err != nil {
				t.Fatal(err)
			}
			s.script[id] = []reply{{time.Millisecond, dataplane.ProbeAnswered}}
			ids = append(ids, id)
		}
		for range 2 {
			s.busy = math.MaxInt
			began := s.now
			s.core.ask(ids, s.now)
			for id, a := range s.run(n) {
				if a.Verdict != probe.Void || !strings.HasPrefix(a.Words, "the device takes no packets: busy for ") {
					t.Fatalf("rule %d: %+v", id, a)
				}
			}
			if took := time.Duration(s.now - began); took > timeouts[1]+100*time.Millisecond {
				t.Fatalf("the last answer came after %v", took)
			}
			s.busy, s.now = 0, s.now+int64(time.Minute)
			clear(s.syns)
			s.core.ask(ids, s.now)
			for id, a := range s.run(n) {
				if a.Verdict != probe.Good {
					t.Fatalf("rule %d, of a device that is busy no more: %+v", id, a)
				}
			}
		}
	})
}

// TestCoreWithoutRoom checks that a lack of room, for targets or for texts, is reported as such,
// and that other targets are probed.
func TestCoreWithoutRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, 64)
		address := netip.MustParseAddr("10.9.9.9")
		s.core.hops(netdev.WaysOf(map[netip.Addr]netdev.NextHop{address: simWay}), s.now)
		full := 0
		for id := range uint32(64) {
			x := target(netip.AddrPortFrom(address, uint16(1000+id)), within(time.Second, func(c *lb.Check) {
				http(c)
				// its text is unique, and longer than the room for one
				c.Path = fmt.Sprintf("/%s/%d", strings.Repeat("x", 200), id)
			}))
			if err := s.core.add(id, x); err != nil {
				t.Fatal(err)
			}
			s.core.ask([]uint32{id}, s.now)
			s.script[id] = []reply{{time.Millisecond, dataplane.ProbeStatus}}
			switch a := s.run(1)[id]; {
			case a.Crowded && a.Verdict == probe.Unsure && strings.Contains(a.Words, "no room for"):
				full++
			case a.Crowded || a.Verdict != probe.Good || full > 0:
				t.Fatalf("rule %d: %+v", id, a)
			}
		}
		if full == 0 || full == 64 {
			t.Fatalf("%d of 64 rules had no room", full)
		}
		s.core.remove(0)
		s.core.remove(63)
		if err := s.core.add(0, target(netip.AddrPortFrom(address, 1000), within(time.Second, http))); err != nil {
			t.Fatal(err)
		}
		err := s.core.add(64, target(netip.AddrPortFrom(address, 2000), within(time.Second, tcp)))
		if !errors.Is(err, probe.ErrCrowded) || !strings.Contains(err.Error(), "at most 64 by packets (--max-probes)") {
			t.Fatalf("rule 64 of 64: %v", err)
		}
	})
}

// TestManySilentServersAreBad checks that few servers that answered before and fall silent are
// Unsure, that many are Bad, and that those that never answered are always Unsure.
func TestManySilentServersAreBad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, 1000)
		s.tables = dataplane.NewFakeProbes(1024)
		s.core.tables = s.tables
		address := netip.MustParseAddr("10.9.9.9")
		s.core.hops(netdev.WaysOf(map[netip.Addr]netdev.NextHop{address: simWay}), s.now)
		n := rapid.IntRange(1, 600).Draw(t, "rules")
		var ids []uint32
		for id := range uint32(n) {
			if err := s.core.add(id, target(netip.AddrPortFrom(address, uint16(1000+id)), within(time.Second, tcp))); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		round := func(answer bool) (count [probe.Unsure + 1]int) {
			clear(s.syns)
			for _, id := range ids {
				s.script[id] = make([]reply, silentAttempts)
				if answer {
					s.script[id][0] = reply{time.Millisecond, dataplane.ProbeAnswered}
				}
			}
			s.core.ask(ids, s.now)
			for _, a := range s.run(n) {
				count[a.Verdict]++
				if a.Silent != (a.Verdict == probe.Bad) {
					t.Fatalf("%+v", a)
				}
			}
			return count
		}
		expect := func(what string, got, want [probe.Unsure + 1]int) {
			if got != want {
				t.Fatalf("%s: got %v, want %v", what, got, want)
			}
		}
		doubted := min(n, maxDoubts)
		expect("never heard", round(false), [...]int{probe.Unsure: n})
		expect("heard", round(true), [...]int{probe.Good: n, probe.Unsure: 0})
		expect("silent", round(false), [...]int{probe.Bad: n - doubted, probe.Unsure: doubted})
		if n <= maxDoubts {
			expect("silent again", round(false), [...]int{probe.Bad: n, probe.Unsure: 0})
		}
		expect("heard again", round(true), [...]int{probe.Good: n, probe.Unsure: 0})
		if n > maxDoubts {
			s.now += int64(time.Minute)
			expect("silent soon", round(false), [...]int{probe.Bad: n, probe.Unsure: 0})
			expect("heard once more", round(true), [...]int{probe.Good: n, probe.Unsure: 0})
		}
		// PacketsRest of the earlier ones is over.
		s.now += int64(probe.PacketsRest)
		expect("silent later", round(false), [...]int{probe.Bad: n - doubted, probe.Unsure: doubted})
	})
}

// TestDestinationsComeBack checks that a destination that was unused for a moment has its way
// immediately, because it is not reported again.
func TestDestinationsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, 8)
		x := target(netip.MustParseAddrPort("10.9.9.9:1000"), within(time.Second, tcp))
		s.script[0] = []reply{{time.Millisecond, dataplane.ProbeAnswered}}
		if err := s.core.add(0, x); err != nil {
			t.Fatal(err)
		}
		s.core.hops(netdev.WaysOf(map[netip.Addr]netdev.NextHop{x.Address.Addr(): simWay}), s.now)
		s.core.remove(0)
		if err := s.core.add(0, x); err != nil {
			t.Fatal(err)
		}
		s.core.ask([]uint32{0}, s.now)
		if a := s.run(1)[0]; a.Verdict != probe.Good {
			t.Fatalf("%+v", a)
		}
	})
}

// TestRulesTakeLittle measures the bytes of many targets, each at an address of its own.
func TestRulesTakeLittle(t *testing.T) {
	const many = 140_000
	c := newCore(Options{Tables: nowhereTables{}})
	check := target(netip.MustParseAddrPort("10.0.0.1:80"), within(time.Second, tcp)).Check
	before := heap()
	at := netip.MustParseAddr("10.32.0.0")
	for id := range uint32(many) {
		if err := c.add(id, probe.Target{Check: check, Address: netip.AddrPortFrom(at, 80)}); err != nil {
			t.Fatal(err)
		}
		at = at.Next()
	}
	got := float64(heap()-before) / many
	runtime.KeepAlive(c)
	t.Logf("%.0f bytes a rule", got)
	if got > 120 {
		t.Errorf("%.0f bytes a rule", got)
	}
}

// nowhereTables are tables without a program.
type nowhereTables struct{ dataplane.ProbeTables }

func (nowhereTables) Size() uint32 { return 1 << 18 }

// heap returns the bytes in use after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

package host

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// TestLeasesOfAHost checks that a host requests the ranges of its servers, requests more when ports
// get scarce, and returns idle ones, and that a removed server has none.
func TestLeasesOfAHost(t *testing.T) {
	now := clock.NewFake(time.Unix(1_700_000_000, 0))
	tables := dataplane.NewFakeHostSNAT(now.Now)
	l := NewLeases(tables, snat.DefaultStockRules, now, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	h := snat.Holder{VIP: snat.VIP{Addr: netip.MustParseAddr("203.0.113.10")}, DIP: netip.MustParseAddr("10.20.1.11")}
	hear := func(up *apiv1.PlanUpdate) {
		t.Helper()
		if err := l.Hear(up); err != nil {
			t.Fatal(err)
		}
	}
	say := func() *apiv1.NodeReport {
		t.Helper()
		for {
			var r apiv1.NodeReport
			<-l.Says()
			if l.Say(&r) {
				return &r
			}
		}
	}
	answers := func(revision int64, kind snat.Kind, ranges ...snat.Range) {
		t.Helper()
		a := convert.ToSNATAnswer(snat.Answer{Holder: h, Kind: kind, Ranges: ranges, Revision: revision})
		hear(&apiv1.PlanUpdate{SnatAnswers: &apiv1.SnatAnswers{Epoch: 1, Answers: []*apiv1.SnatAnswer{a}}})
	}
	l.Begin()
	hear(&apiv1.PlanUpdate{SnatHolders: &apiv1.SnatHolders{Holders: []*apiv1.SnatHolder{convert.ToSNATHolder(h)}}})
	if r := say(); len(r.GetSnatAsks()) != 1 || !r.GetSnatAsks()[0].GetSync() {
		t.Fatalf("first said %v, want a question for everything", r)
	}
	answers(5, snat.All)
	if r := say(); len(r.GetSnatAsks()) != 1 || r.GetSnatAsks()[0].GetSync() {
		t.Fatalf("a server without ports: said %v, want an ask", r)
	}
	answers(6, snat.Granted, 200, 201, 202)
	if got := tables.Ranges(h); len(got) != 3 {
		t.Fatalf("the tables have %v", got)
	}
	flow := snat.Flow{Protocol: 6, Port: 443, Addr: 1}
	for range 24 {
		if _, ok := tables.Take(h, flow); !ok {
			t.Fatal("a port is missing")
		}
	}
	if _, ok := tables.Take(h, flow); ok {
		t.Fatal("a port serves one far end twice")
	}
	if r := say(); len(r.GetSnatAsks()) != 1 {
		t.Fatalf("without a port left: said %v, want an ask", r)
	}
	answers(7, snat.Granted, 300)
	if port, ok := tables.Take(h, flow); !ok || snat.RangeOf(port) != 300 {
		t.Fatalf("port %d %v, want one of the range that was granted", port, ok)
	}
	answers(8, snat.Taken, 300)
	if got := tables.Ranges(h); len(got) != 3 {
		t.Fatalf("the tables have %v after a range was taken", got)
	}
	hear(&apiv1.PlanUpdate{SnatHolders: &apiv1.SnatHolders{}})
	if got := tables.Ranges(h); len(got) != 0 {
		t.Fatalf("the tables have %v of a server without SNAT", got)
	}
}

// TestIdleTimeOfHolders checks that unused ranges are returned after the idle time that the manager
// sends with the server.
func TestIdleTimeOfHolders(t *testing.T) {
	now := clock.NewFake(time.Unix(1_700_000_000, 0))
	tables := dataplane.NewFakeHostSNAT(now.Now)
	l := NewLeases(tables, snat.DefaultStockRules, now, slog.New(slog.DiscardHandler))
	h := snat.Holder{VIP: snat.VIP{Addr: netip.MustParseAddr("203.0.113.10")}, DIP: netip.MustParseAddr("10.20.1.11")}
	hear := func(up *apiv1.PlanUpdate) {
		t.Helper()
		if err := l.Hear(up); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(idle time.Duration) {
		hear(&apiv1.PlanUpdate{SnatHolders: &apiv1.SnatHolders{Holders: []*apiv1.SnatHolder{convert.ToSNATHolding(h, idle)}}})
	}
	// returned polls once a second and returns how many ranges were given back.
	returned := func(within time.Duration) (n int) {
		for range int(within / time.Second) {
			now.Advance(time.Second)
			l.Poll()
			var r apiv1.NodeReport
			if l.Say(&r) {
				for _, ret := range r.GetSnatReturns() {
					n += len(ret.GetRanges())
					a := convert.ToSNATAnswer(snat.Answer{Holder: h, Kind: snat.Taken, Ranges: convert.FromSNATRanges(ret.GetRanges()), Revision: 6})
					hear(&apiv1.PlanUpdate{SnatAnswers: &apiv1.SnatAnswers{Epoch: 1, Answers: []*apiv1.SnatAnswer{a}}})
				}
			}
		}
		return n
	}
	l.Begin()
	holds(time.Hour)
	all := convert.ToSNATAnswer(snat.Answer{Holder: h, Kind: snat.All, Ranges: []snat.Range{200, 201, 202, 203, 204}, Revision: 5})
	hear(&apiv1.PlanUpdate{SnatAnswers: &apiv1.SnatAnswers{Epoch: 1, Answers: []*apiv1.SnatAnswer{all}}})
	if n := returned(10 * time.Minute); n != 0 {
		t.Errorf("%d ranges were given back after 10 minutes, the time is an hour", n)
	}
	holds(time.Minute)
	if n := returned(5 * time.Second); n != 5-snat.DefaultStockRules.Keep {
		t.Errorf("%d ranges were given back when the time is a minute, want all but %d", n, snat.DefaultStockRules.Keep)
	}
	wrong := convert.ToSNATHolding(h, time.Minute)
	wrong.Idle.Seconds = -1
	if err := l.Hear(&apiv1.PlanUpdate{SnatHolders: &apiv1.SnatHolders{Holders: []*apiv1.SnatHolder{wrong}}}); err == nil {
		t.Error("a negative time is taken")
	}
}

// TestHostGivesBackBeyondItsLimit checks a limit that falls: ranges without connections are
// returned immediately, and those with some take no new one and are returned after the last has
// ended. When others need ranges, idle ones are returned without delay.
func TestHostGivesBackBeyondItsLimit(t *testing.T) {
	now := clock.NewFake(time.Unix(1_700_000_000, 0))
	tables := dataplane.NewFakeHostSNAT(now.Now)
	l := NewLeases(tables, snat.DefaultStockRules, now, slog.New(slog.DiscardHandler))
	h := snat.Holder{VIP: snat.VIP{Addr: netip.MustParseAddr("203.0.113.10")}, DIP: netip.MustParseAddr("10.20.1.11")}
	hear := func(answers ...snat.Answer) {
		t.Helper()
		up := &apiv1.SnatAnswers{Epoch: 1}
		for _, a := range answers {
			a.Holder = h
			up.Answers = append(up.Answers, convert.ToSNATAnswer(a))
		}
		if err := l.Hear(&apiv1.PlanUpdate{SnatAnswers: up}); err != nil {
			t.Fatal(err)
		}
	}
	// returned polls once a second and returns the ranges that were given back. The manager accepts
	// them.
	returned := func(within time.Duration) (out []snat.Range) {
		for range int(within / time.Second) {
			now.Advance(time.Second)
			l.Poll()
			var r apiv1.NodeReport
			if !l.Say(&r) {
				continue
			}
			for _, ret := range r.GetSnatReturns() {
				out = append(out, convert.FromSNATRanges(ret.GetRanges())...)
				hear(snat.Answer{Kind: snat.Taken, Ranges: convert.FromSNATRanges(ret.GetRanges()), Revision: 6})
			}
		}
		return out
	}
	l.Begin()
	if err := l.Hear(&apiv1.PlanUpdate{SnatHolders: &apiv1.SnatHolders{Holders: []*apiv1.SnatHolder{convert.ToSNATHolder(h)}}}); err != nil {
		t.Fatal(err)
	}
	hear(snat.Answer{Kind: snat.All, Ranges: []snat.Range{200, 201, 202, 203, 204, 205}, Revision: 5})
	// Connections to one far end take ports of some ranges.
	flow, ports := snat.Flow{Protocol: 6, Port: 443, Addr: 1}, map[uint16]bool{}
	busy := map[snat.Range]bool{}
	for len(busy) < 3 {
		port, ok := tables.Take(h, flow)
		if !ok {
			t.Fatal("a port is missing")
		}
		ports[port], busy[snat.RangeOf(port)] = true, true
	}
	hear(snat.Answer{Kind: snat.Shrink, Keep: 2})
	if got := tables.Usable(h); len(got) != 2 {
		t.Errorf("new connections may take ports of %v, want of two ranges", got)
	}
	for _, r := range returned(time.Minute) {
		if busy[r] {
			t.Errorf("range %s is given back, and a connection has a port of it", r)
		}
	}
	for port := range ports {
		tables.Give(h, flow, port)
	}
	rest := returned(time.Minute)
	if len(rest) == 0 {
		t.Error("nothing is given back when the connections have ended")
	}
	if got := tables.Usable(h); len(got) != 2 {
		t.Errorf("it has %v at the end, want two ranges", got)
	}

	hear(snat.Answer{Kind: snat.All, Ranges: []snat.Range{300, 301, 302, 303, 304, 305}, Revision: 7})
	if got := returned(snat.DefaultStockRules.Soon + 10*time.Second); len(got) != 0 {
		t.Errorf("%v are given back before anybody needs them", got)
	}
	hear(snat.Answer{Kind: snat.Reclaim})
	if got := returned(30 * time.Second); len(got) != 6-snat.DefaultStockRules.Keep {
		t.Errorf("%v are given back when others need ranges, want all but %d", got, snat.DefaultStockRules.Keep)
	}
}

// TestServersBeyondTheTable checks a table with room for fewer servers than the manager sends: a
// VIP with few servers gets ports for them, and servers that have ports keep them.
func TestServersBeyondTheTable(t *testing.T) {
	now := clock.NewFake(time.Unix(1_700_000_000, 0))
	tables := dataplane.NewFakeHostSNAT(now.Now)
	l := NewLeases(tables, snat.DefaultStockRules, now, slog.New(slog.DiscardHandler))
	l.most = 6
	hear := func(holders ...snat.Holder) {
		t.Helper()
		var in apiv1.SnatHolders
		for _, h := range holders {
			in.Holders = append(in.Holders, convert.ToSNATHolder(h))
		}
		if err := l.Hear(&apiv1.PlanUpdate{SnatHolders: &in}); err != nil {
			t.Fatal(err)
		}
	}
	count := func() map[byte]int {
		out := map[byte]int{}
		for _, h := range tables.Told() {
			out[h.VIP.Addr.As4()[3]]++
		}
		return out
	}
	var evil []snat.Holder
	for i := range 20 {
		evil = append(evil, holderOf(1, i))
	}
	hear(append(evil, holderOf(2, 1), holderOf(2, 2))...)
	if got := count(); got[1] != 4 || got[2] != 2 {
		t.Errorf("places by VIP: %v, want four and two", got)
	}
	if used, fault := l.room(); used != 6 || fault != "table snat_servers is full: 16 servers get no ports of VIPs 203.0.113.1" {
		t.Errorf("%d places in use, fault %q", used, fault)
	}
	hear(append(evil, holderOf(2, 1), holderOf(2, 2), holderOf(3, 1))...)
	if got := count(); got[1] != 4 || got[2] != 2 {
		t.Errorf("one VIP more: places by VIP: %v, want those there were", got)
	}
	hear(evil[0], holderOf(3, 1))
	if _, fault := l.room(); fault != "" || count()[3] != 1 {
		t.Errorf("with room: fault %q, places by VIP %v", fault, count())
	}
}

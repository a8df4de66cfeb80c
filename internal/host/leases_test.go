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

// TestLeasesOfAHost: a host asks for what its servers hold, for more when ports get scarce, and gives back what is idle; a server that
// is gone has nothing.
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

package host

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestSweepUnderPressure checks that steps follow each other faster while a quarter of the table
// has established flows, and that a VIP that exceeds its share is logged once. It uses the clock of
// the synctest bubble.
func TestSweepUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tables dataplane.FakeHost
		var log bytes.Buffer
		a := New(&tables, settings(forwarding), &prober{}, clock.System{}, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); a.sweep(ctx) }()
		during := func(d time.Duration) int {
			before := tables.Swept()
			<-time.After(d)
			synctest.Wait()
			return tables.Swept() - before
		}
		during(time.Millisecond)
		if n := during(10 * sweepEvery); n != 10 {
			t.Errorf("%d steps in ten intervals, want 10", n)
		}
		over := dataplane.Share{VIP: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10")}, Table: "flows", Held: 9, Share: 8}
		tables.SetShares([]dataplane.Share{over}, true)
		during(sweepEvery)
		if n := during(2 * sweepEvery); n != 32 {
			t.Errorf("%d steps in two intervals under pressure, want 32", n)
		}
		tables.SetShares(nil, false)
		during(sweepEvery)
		if n := during(4 * sweepEvery); n != 4 {
			t.Errorf("%d steps in four intervals afterwards, want 4", n)
		}
		stop()
		<-done
		if got := strings.Count(log.String(), `msg="VIP over its share of a table" vip=203.0.113.10 table=flows held=9 share=8`); got != 1 {
			t.Errorf("logged %d times, want once:\n%s", got, log.String())
		}
	})
}

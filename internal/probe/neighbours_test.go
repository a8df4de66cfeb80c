package probe

import (
	"math/bits"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestNeighboursAreFewOfATick checks that no more targets are planned together than are due in a
// tick anyway, and not many fewer.
func TestNeighboursAreFewOfATick(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.IntRange(0, 1<<18).Draw(t, "rules")
		interval := time.Duration(rapid.Int64Range(int64(100*time.Millisecond), int64(time.Hour)).Draw(t, "interval"))
		n := neighbours(rules, interval)
		due := float64(rules) * float64(tick) / float64(interval)
		if bits.OnesCount32(n) != 1 || n > maxNeighbours || n > 1 && float64(n) > due/2 {
			t.Fatalf("%d together of %g that are due in a tick", n, due)
		}
		if n < maxNeighbours && float64(4*n) < due-1 {
			t.Fatalf("only %d together of %g that are due in a tick", n, due)
		}
	})
}

// TestNeighboursStayTogether checks that targets with consecutive numbers keep the same plan, and
// that all plans spread over the interval.
func TestNeighboursStayTogether(t *testing.T) {
	const rules, interval = 1 << 17, 4 * time.Second
	check := lb.Check{Kind: lb.CheckTCP, Interval: interval, Timeout: time.Second, Jitter: 10}
	e := &Engine{table: newTable(), options: Options{Random: func() float64 { panic("one by one") }}}
	e.table.salt = 1
	at := netip.MustParseAddr("10.0.0.0")
	for range rules {
		e.table.add(Of(check, at, 80))
		at = at.Next()
	}
	n := neighbours(rules, interval)
	if n < 2 {
		t.Fatal("nobody has neighbours")
	}
	for round := range 3 {
		quarters := [4]int{}
		for id := range uint32(rules) {
			r := &e.table.rules[id]
			r.plan, _ = e.table.pace(id).after(r.plan, 0, r.run, round == 0, false, e.drawLocked(id))
			if first := e.table.rules[id/n*n].plan; r.plan != first {
				t.Fatalf("round %d: rule %d is planned at %v, its neighbour %v", round, id, r.plan, first)
			}
			if round == 0 {
				quarters[min(r.plan/(interval/4), 3)]++
			}
		}
		for i, q := range quarters {
			if round == 0 && (q < rules/5 || q > rules/3) {
				t.Errorf("%d of %d probes are in quarter %d of the interval", q, rules, i)
			}
		}
	}
}

package mux

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// BenchmarkProbedBatch measures a batch of results by which 20,000 members of a mux go down or come
// up. Its goal is well below 20 ms.
func BenchmarkProbedBatch(b *testing.B) { benchBatch(b, nil) }

// BenchmarkProbedBatchDamped is the same with damped members and endpoints that need several
// members.
func BenchmarkProbedBatchDamped(b *testing.B) {
	benchBatch(b, func(e *plan.Endpoint) {
		e.Health.Damping = &lb.Damping{Flips: 1 << 15, Within: time.Hour, Hold: time.Second}
		e.Health.MinimumHealthy = 3
	})
}

// BenchmarkProbedBatchOpen is the same where all endpoints begin or stop to fail open, which is
// logged for the next agent.
func BenchmarkProbedBatchOpen(b *testing.B) {
	benchBatch(b, func(e *plan.Endpoint) { e.FailOpen = true })
}

// benchBatch makes 2,000 endpoints of 10 members each change health again and again.
func benchBatch(b *testing.B, change func(*plan.Endpoint)) {
	a, p := benchWorld(b, 2000)
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		e.Health.Checks[0].Rise, e.Health.Checks[0].Fall = 1, 1
		if change != nil {
			change(e)
		}
	}
	if err := a.Apply(context.Background(), p); err != nil {
		b.Fatal(err)
	}
	targets := a.o.Prober.(*prober).targets
	up, down := make([]probe.Result, 0, len(targets)), make([]probe.Result, 0, len(targets))
	for _, t := range targets {
		up = append(up, probe.Result{Target: t, Good: true, Words: "connected", At: time.Unix(1000, 0), Took: time.Millisecond})
		down = append(down, probe.Result{Target: t, Words: "connection refused", At: time.Unix(1000, 0), Took: time.Millisecond})
	}
	for range 12 { // histories are full
		a.Probed(up)
		a.Probed(down)
	}
	cpu := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	began := cpu()
	b.ResetTimer()
	for i := range b.N {
		if i%2 == 0 {
			a.Probed(up)
		} else {
			a.Probed(down)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(cpu()-began)/float64(b.N), "cpu-ns/op")
	flips := uint64(0)
	for _, n := range a.Flips() {
		flips += n
	}
	if want := uint64(len(targets) * (24 + b.N)); flips != want || len(targets) != 20_000 {
		b.Fatalf("%d flips of %d members, expected %d", flips, len(targets), want)
	}
}

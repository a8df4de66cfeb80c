package means

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// TestRealServerIsProbed runs the engine and its probers against a server.
func TestRealServerIsProbed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	results := make(chan probe.Result, 10)
	e, err := New(Options{Clock: clock.System{}, Report: func(rs []probe.Result) {
		for _, r := range rs {
			results <- r
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := lb.Check{Kind: lb.CheckTCP, Interval: 100 * time.Millisecond, Timeout: 100 * time.Millisecond}
	c.SetDefaults()
	address := l.Addr().(*net.TCPAddr).AddrPort()
	want := probe.Of(c, address.Addr(), address.Port())
	if err := e.Set([]probe.Target{want}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if r := <-results; r.Target != want || !r.Good || r.Words != "connected" {
			t.Errorf("got %+v", r)
		}
	}
}

// BenchmarkMemory measures the bytes of a target in all: schedule, tables and the probers' data.
func BenchmarkMemory(b *testing.B) {
	const rules = 140_000
	targets := make([]probe.Target, rules)
	for i := range targets {
		c := lb.Check{Kind: lb.CheckHTTP, Interval: time.Hour, Engine: lb.EngineSocket}
		c.SetDefaults()
		targets[i] = probe.Of(c, netip.AddrFrom4([4]byte{127, 1 + byte(i>>16), byte(i >> 8), byte(i)}), 1)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		before := heap()
		e, err := New(Options{Clock: clock.System{}, Report: func([]probe.Result) {}})
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Resume(targets); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(heap()-before)/rules, "B/rule")
		e.Close()
	}
	runtime.KeepAlive(targets)
}

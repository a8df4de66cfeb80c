package manager

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// BenchmarkApply changes one service of many: a store in memory, no nodes. cpu-ms/op is that of the
// whole process.
func BenchmarkApply(b *testing.B) {
	for _, count := range []int{1, 1000, 5000, 20000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			m := benchManager(b)
			fill(b, m, count)
			begin := cpuTime()
			for i := 0; b.Loop(); i++ {
				if _, _, err := m.apply(b.Context(), &apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(benchService(i%count, i))}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpuTime()-begin)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}

func benchManager(b *testing.B) *Manager {
	dir, err := OpenDataDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { dir.Close() })
	m, err := Open(b.Context(), Options{Dir: dir, Store: store.NewMemory(), Name: "m1", Listen: "127.0.0.1:0"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Close)
	return m
}

// fill applies a Network and the services.
func fill(b *testing.B, m *Manager, count int) {
	n := &lb.Network{Name: "main", VIPs: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}, Underlay: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	lb.SetDefaults(n)
	in := []*apiv1.Object{convert.ToObject(n)}
	for i := range count {
		in = append(in, convert.ToObject(benchService(i, -1)))
	}
	if _, _, err := m.apply(b.Context(), &apiv1.ApplyRequest{Objects: in}); err != nil {
		b.Fatal(err)
	}
}

// benchService is service i with ten backends; step changes one of its weights.
func benchService(i, step int) *lb.Service {
	s := &lb.Service{Name: fmt.Sprintf("s%d", i), VIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16 | byte(i>>16), byte(i >> 8), byte(i)})}}
	e := lb.Endpoint{Protocol: lb.TCP, Port: 80}
	for k := range 10 {
		e.Backends = append(e.Backends, lb.Backend{
			DIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)})}, Port: 80, Host: netip.MustParseAddr("10.200.1.1"), Weight: 1,
		})
	}
	e.Backends[0].Weight = uint16(step&1 + 2)
	s.Endpoints = []lb.Endpoint{e}
	lb.SetDefaults(s)
	return s
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

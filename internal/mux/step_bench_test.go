package mux

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// benchWorld returns an agent with the real tables and an applied plan of n endpoints of 10
// members, each with a service.
func benchWorld(b *testing.B, n int) (*Agent, plan.Plan) {
	tables, err := dataplane.OpenMux(dataplane.MuxOptions{Address: [6]byte{2, 0, 0, 0, 0, 1}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { tables.Close() })
	a, err := New(Options{
		Tables: tables, Ring: BuildRing, Prober: &prober{}, Hops: &hops{}, Speaker: &speaker{journal: &journal{}}, Clock: clock.System{},
		Ensure: func(context.Context) (bool, error) { return false, nil }, RunDir: b.TempDir(),
		ReadFile: func(string) ([]byte, error) { return []byte("secret\n"), nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	p := planOf(nil)
	p.TunnelSources = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}
	for i := range n {
		e := plan.Endpoint{
			Key:     lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), Protocol: lb.TCP, Port: 80},
			Service: fmt.Sprintf("web%05d", i), Generation: 1, RingCode: 10, KeyID: 3,
			Health: lb.Health{Checks: []lb.Check{{Kind: lb.CheckTCP, Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 2}}, From: lb.FromMux},
		}
		for j := range 10 {
			dip := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)})
			e.Members = append(e.Members, plan.Member{ID: uint16(j + 1), DIP: dip, Port: 8080, Weight: 1, Outer: dip})
		}
		p.Endpoints = append(p.Endpoints, e)
		p.Services = append(p.Services, plan.Service{Name: e.Service, VIPs: []netip.Addr{e.Key.VIP}})
	}
	return a, p
}

// benchChanges measures changes of a plan: change makes the i-th one in a copy whose lists are not
// shared.
func benchChanges(b *testing.B, n int, change func(i int, p *plan.Plan)) {
	a, p := benchWorld(b, n)
	apply := func() {
		if err := a.Apply(context.Background(), p); err != nil {
			b.Fatal(err)
		}
	}
	apply()
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		p.Endpoints = slices.Clone(p.Endpoints)
		change(i, &p)
		b.StartTimer()
		apply()
	}
}

// changeWeight changes the weight of a member of an endpoint.
func changeWeight(i int, p *plan.Plan) {
	e := &p.Endpoints[i*7%len(p.Endpoints)]
	e.Generation++
	e.Members = slices.Clone(e.Members)
	e.Members[0].Weight = uint16(2 + i%100)
}

// BenchmarkOneChangeOf20000 measures a change of one of 20,000 endpoints.
func BenchmarkOneChangeOf20000(b *testing.B) { benchChanges(b, 20_000, changeWeight) }

// BenchmarkOneChangeOf1000 is the same among few endpoints.
func BenchmarkOneChangeOf1000(b *testing.B) { benchChanges(b, 1000, changeWeight) }

// BenchmarkNewBackendOf20000 measures a new server in one of 20,000 endpoints, with its own probes
// and next hop.
func BenchmarkNewBackendOf20000(b *testing.B) {
	benchChanges(b, 20_000, func(i int, p *plan.Plan) {
		e := &p.Endpoints[i*7%len(p.Endpoints)]
		e.Generation++
		e.Members = slices.Clone(e.Members)
		m := &e.Members[0]
		m.ID = 11 + uint16(i%100)
		m.DIP = netip.AddrFrom4([4]byte{172, byte(16 + i>>16), byte(i >> 8), byte(i)})
		m.Outer = m.DIP
		slices.SortFunc(e.Members, func(a, b plan.Member) int { return int(a.ID) - int(b.ID) })
	})
}

// BenchmarkOtherLimitsOf20000 measures a new limit of one of 20,000 services.
func BenchmarkOtherLimitsOf20000(b *testing.B) {
	benchChanges(b, 20_000, func(i int, p *plan.Plan) {
		p.Services = slices.Clone(p.Services)
		p.Services[i*7%len(p.Services)].Limits.Packets = uint64(1000 + i)
	})
}

// BenchmarkVIPComesAndGoesOf20000 measures the addition or removal of one of 20,000 VIPs.
func BenchmarkVIPComesAndGoesOf20000(b *testing.B) {
	var gone plan.Endpoint
	benchChanges(b, 20_000, func(i int, p *plan.Plan) {
		if i%2 == 0 {
			gone = p.Endpoints[100]
			p.Endpoints = slices.Delete(p.Endpoints, 100, 101)
		} else {
			p.Endpoints = slices.Insert(p.Endpoints, 100, gone)
		}
	})
}

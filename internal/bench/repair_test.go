package bench

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/sim"
)

// The rings of a story keep their size, except in the story about a ring that grows.
func TestStoriesRings(t *testing.T) {
	for _, s := range stories {
		if len(s.cases)+1 != len(s.pools) || len(s.pools[0]) != repairPool {
			t.Errorf("%v: %d pools, the first of %d", s.cases, len(s.pools), len(s.pools[0]))
		}
		codes := map[uint8]bool{}
		for _, p := range s.simPools() {
			var weights []uint16
			for _, m := range p {
				weights = append(weights, m.Weight)
			}
			codes[ring.SizeCode(weights, 0)] = true
		}
		if want := map[bool]int{false: 1, true: 2}[s.equal]; len(codes) != want {
			t.Errorf("%v: rings of sizes %v: want %d", s.cases, codes, want)
		}
	}
}

// The lab has each server of all stories once.
func TestPoolPlaces(t *testing.T) {
	seen := map[netip.Addr]bool{}
	for n := range 13 {
		host, vm := poolVM(n)
		if host < 1 || host > repairHosts || vm < 1 || vm > repairVMs || seen[poolDIP(n)] {
			t.Errorf("backend %d is VM %d of host %d", n, vm, host)
		}
		seen[poolDIP(n)] = true
	}
}

// The simulation's result over a range of ports: no repair loses a tenth, plain hashing nearly all,
// and Shunt's rule none at the first change.
func TestStoriesSimulated(t *testing.T) {
	var flows []flowTuple
	for port := range uint16(8000) {
		flows = append(flows, flowTuple{netip.AddrPortFrom(lab.ClientAddresses(1).V4.Addr(), 10000+port), netip.MustParseAddrPort("203.0.113.20:7")})
	}
	for _, s := range stories {
		percent := func(rule sim.Rule) float64 {
			return 100 * float64(sim.Broken(rule, s.simPools(), hashesOf(flows))[0]) / float64(len(flows))
		}
		if n := percent(sim.LastOwner); n != 0 {
			t.Errorf("%v: Shunt's rule loses %g %%", s.cases, n)
		}
		if n := percent(sim.PreviousRing); n != 0 {
			t.Errorf("%v: the ring before loses %g %% at one change", s.cases, n)
		}
		for change, n := range sim.Broken(sim.Beamer, s.simPools(), hashesOf(flows)) {
			if n != 0 {
				t.Errorf("%v: Beamer loses %d connections by change %d", s.cases, n, change+1)
			}
		}
		if n := percent(sim.PresentOwner); s.equal != (n > 50) || n < 7 || !s.equal && n > 14 {
			t.Errorf("%v: no repair loses %g %%", s.cases, n)
		}
		if n := percent(sim.Modulo); n < 80 {
			t.Errorf("%v: plain hashing loses %g %%", s.cases, n)
		}
	}
}

// Connections exchange messages until the end, and broken ones are counted once.
func TestLives(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	var served []net.Conn
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			served = append(served, conn)
			mu.Unlock()
			go io.Copy(conn, conn)
		}
	}()
	var d net.Dialer
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return d.DialContext(ctx, network, address)
	}
	to := l.Addr().(*net.TCPAddr).AddrPort()
	all, err := openLives(t.Context(), dial, to, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer all.close()
	if flows := all.flows(); len(flows) != 100 || flows[0].vip != to {
		t.Errorf("%d flows, the first %v", len(flows), flows[0])
	}
	if n := all.talk().end(); n != 0 {
		t.Errorf("%d of 100 are broken: %v", n, all.broken)
	}
	mu.Lock()
	for _, conn := range served[:30] {
		conn.Close()
	}
	mu.Unlock()
	for range 2 {
		if n := all.talk().end(); n != 30 {
			t.Errorf("%d of 100 are broken, 30 were closed", n)
		}
	}
}

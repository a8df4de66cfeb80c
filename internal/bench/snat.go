package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/snat"
)

const (
	snatLeases = "leases"
	snatAbuser = "abuser"
	snatMemory = "memory"
)

var snatSuite = Suite{
	Name:  "snat",
	Title: "Ports for outbound connections",
	About: "Three managers, each a process with a store that syncs every write to its disk, on the CPUs of this machine with the simulated nodes: two muxes with the real agent's " +
		"part, which fold every lease, and hosts that speak the node protocol. 2,000 VIPs, two servers each. `leases`: p50_ms and p99_ms are from an ask to " +
		"the grant, at 1,000 asks a second, sent whether others were answered or not; per_s is ranges a second, with all that were given back at rest for two minutes, while " +
		"every server asks for 32 as soon as it has given back what it had. local_share is the share of connections, of a workload with Zipf's far ends, that got a port without " +
		"waiting, the lease taking 15 ms. `abuser`: the latency of a tenant that asks 200 times a second, in turns alone (alone_p99_ms) and beside a tenant whose " +
		"3,000 servers ask without end. `memory`: allocating a range of a VIP (ns), freeing it (free_ns), and a connection's port (port_ns).",
	Cases:     []string{snatLeases, snatAbuser, snatMemory},
	Plotted:   []string{"p50_ms", "p99_ms", "alone_p50_ms", "alone_p99_ms"},
	Unplotted: []string{snatMemory},
	Unit:      "ms",
	Takes:     3 * time.Minute, TakesShort: 40 * time.Second,
	Goals: []Goal{
		atMost(snatLeases, "p50_ms", 2), atMost(snatLeases, "p99_ms", 15), atLeast(snatLeases, "per_s", 100_000), atLeast(snatLeases, "local_share", 0.99),
		atMost(snatAbuser, "p99_over_alone", 1.2), atMost(snatMemory, "ns", 40), atMost(snatMemory, "port_ns", 40),
	},
	run: runSNAT,
}

// snatTimes say how long the parts take.
type snatTimes struct {
	latency, sustained, turn time.Duration
	turns, vips              int
}

func runSNAT(ctx context.Context, o Options, emit func(Row)) error {
	times := snatTimes{latency: 20 * time.Second, sustained: time.Minute, turn: 4 * time.Second, turns: 6, vips: 2000}
	if o.Short {
		times = snatTimes{latency: time.Second, sustained: 2 * time.Second, turn: 500 * time.Millisecond, turns: 2, vips: 200}
	}
	if o.wants(snatLeases) || o.wants(snatAbuser) {
		if err := withSNAT(ctx, o, times.vips, func(ctx context.Context, r *snatRig) error { return r.measure(ctx, o, times, emit) }); err != nil {
			return err
		}
	}
	if o.wants(snatMemory) {
		o.progressf("snat memory")
		take, free := snatTakeCost()
		emit(Row{Case: snatMemory, Fields: []Field{{"ns", take}, {"free_ns", free}, {"port_ns", snatPortCost()}}})
	}
	return nil
}

func (r *snatRig) measure(ctx context.Context, o Options, times snatTimes, emit func(Row)) error {
	if o.wants(snatLeases) {
		o.progressf("snat: 1,000 asks a second for %v", times.latency)
		lat, err := r.openLoop(ctx, r.normal, 1000, times.latency)
		if err != nil {
			return err
		}
		o.progressf("snat: all ask without end for %v", times.sustained)
		perSecond, err := r.closedLoop(ctx, times.sustained)
		if err != nil {
			return err
		}
		emit(Row{Case: snatLeases, Fields: []Field{
			{"p50_ms", Percentile(lat, 0.5)}, {"p99_ms", Percentile(lat, 0.99)}, {"per_s", perSecond}, {"local_share", localShare(o.Short)}, {"asks", len(lat)},
		}})
	}
	if !o.wants(snatAbuser) {
		return nil
	}
	var alone, beside []float64
	victims := r.normal[:r.few]
	abusers := r.normal[len(victims):]
	abusers = abusers[:min(3000, len(abusers))]
	for turn := range times.turns {
		o.progressf("snat: turn %d of %d, alone and beside an abuser", turn+1, times.turns)
		lat, err := r.openLoop(ctx, victims, 200, times.turn)
		if err != nil {
			return err
		}
		alone = append(alone, lat...)
		stop := r.abuse(abusers)
		lat, err = r.openLoop(ctx, victims, 200, times.turn)
		if err := stop(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		beside = append(beside, lat...)
		if err := pause(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	p99, alone99 := Percentile(beside, 0.99), Percentile(alone, 0.99)
	emit(Row{Case: snatAbuser, Fields: []Field{
		{"p50_ms", Percentile(beside, 0.5)}, {"p99_ms", p99}, {"alone_p50_ms", Percentile(alone, 0.5)}, {"alone_p99_ms", alone99}, {"p99_over_alone", p99 / alone99},
	}})
	return nil
}

// localShare is the share of connections that need not wait: 200 servers behind VIPs of their own opening 20 connections a second each that last 30 s
// on average, to far ends of which the k-th is chosen in proportion to 1/k, of 1,000. A lease takes 15 ms, as many as predicted come at once.
func localShare(short bool) float64 {
	const lease = 15 * time.Millisecond
	dips, span := 200, 10*time.Minute
	if short {
		dips, span = 10, 2*time.Minute
	}
	var local, all float64
	weights, sum := make([]float64, 1000), 0.0
	for k := range weights {
		sum += 1 / float64(k+1)
		weights[k] = sum
	}
	for i := range dips {
		rng := rand.New(rand.NewPCG(uint64(i), 7))
		pool, now := snat.NewPool(uint64(i), 1024), time.Unix(0, 0)
		var ranges []snat.Range
		var demand snat.Demand
		grant := func() {
			for range demand.Ask(now, snat.DefaultRules.First, snat.DefaultRules.MaxGrant) {
				if len(ranges) < snat.DefaultRules.PerDIP {
					ranges = append(ranges, snat.FirstRange+snat.Range(len(ranges)))
				}
			}
			pool.Use(ranges)
		}
		grant() // before the server has connections
		type conn struct {
			f    snat.Flow
			port uint16
			end  time.Time
		}
		var open []conn
		var due time.Time
		for end := now.Add(span); now.Before(end); {
			now = now.Add(time.Duration(rng.ExpFloat64() * float64(time.Second) / 20))
			open = slices.DeleteFunc(open, func(c conn) bool {
				if c.end.After(now) {
					return false
				}
				pool.Give(c.f, c.port)
				return true
			})
			if !due.IsZero() && !due.After(now) {
				due = time.Time{}
				grant()
			}
			k, _ := slices.BinarySearch(weights, rng.Float64()*sum)
			f := snat.Flow{Protocol: 6, Port: 443, Addr: uint32(k)}
			port, ok := pool.Take(f)
			if all++; ok {
				local++
				open = append(open, conn{f, port, now.Add(time.Duration(rng.ExpFloat64() * 30 * float64(time.Second)))})
			}
			if pool.Low() && due.IsZero() && len(ranges) < snat.DefaultRules.PerDIP {
				due = now.Add(lease)
			}
		}
	}
	return local / all
}

// snatTakeCost is what a range takes to be allocated, and to be freed, in ns, of 4,000 VIPs in turns: the least of several runs.
func snatTakeCost() (take, free float64) {
	blocks := make([]*snat.Block, 4000)
	for i := range blocks {
		blocks[i] = snat.NewBlock(snat.Closed())
	}
	const each = 32 // as many as an ask gets
	now := time.Unix(0, 0)
	taken := make([]snat.Range, len(blocks)*each)
	for run := range 9 {
		start := time.Now()
		for i := range taken {
			taken[i], _ = blocks[i/each].Take(1)
		}
		ns := float64(time.Since(start)) / float64(len(taken))
		start = time.Now()
		for i, r := range taken {
			blocks[i/each].Give(r, now)
		}
		for _, b := range blocks {
			b.Tick(now)
		}
		freed := float64(time.Since(start)) / float64(len(taken))
		if run == 0 {
			take, free = ns, freed
		}
		take, free = min(take, ns), min(free, freed)
	}
	return take, free
}

// snatPortCost is what a connection's port takes to be chosen and given back, in ns.
func snatPortCost() float64 {
	p := snat.NewPool(1, 100_000)
	var ranges []snat.Range
	for i := range snat.Range(16) {
		ranges = append(ranges, 200+i)
	}
	p.Use(ranges)
	best := 0.0
	live := make([]struct {
		f    snat.Flow
		port uint16
	}, 4096)
	for run := range 9 {
		const n = 1 << 20
		start := time.Now()
		for i := range n {
			l := &live[i%len(live)]
			if l.port != 0 {
				p.Give(l.f, l.port)
			}
			l.f = snat.Flow{Protocol: 6, Port: 443, Addr: uint32(i % 500)}
			l.port, _ = p.Take(l.f)
		}
		if ns := float64(time.Since(start)) / n; run == 0 || ns < best {
			best = ns
		}
	}
	return best
}

func snatVIPAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

func snatServiceName(i int) string { return fmt.Sprintf("service%05d", i) }

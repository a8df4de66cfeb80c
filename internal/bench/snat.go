package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/snat"
)

const (
	snatLeases = "leases"
	snatAbuser = "abuser"
	snatOver   = "isolation"
	snatMemory = "memory"
	// snatConnects is of real connections, in a laboratory.
	snatConnects = "connects"

	localShareField = "local_share"
)

var snatSuite = Suite{
	Name:  "snat",
	Title: "Ports for outbound connections",
	About: "Three managers, each a process with a store that syncs every write to its disk, on the CPUs of this machine with the simulated nodes: two muxes with the real agent's " +
		"part, which fold every lease, and hosts that speak the node protocol. 2,000 VIPs, two servers each. `leases`: p50_ms, p70_ms and p99_ms are from an ask to " +
		"the grant (Ananta's Figure 15 (SIGCOMM 2013): 70 % within 200 ms, 99 % within 2 s), at 1,000 asks a second, sent whether others were answered or not, while what was granted goes back in bunches every 50 ms; per_s is ranges a second, with all that were given back at rest for two minutes, while " +
		"every server asks for 32 as soon as it has given back what it had. queue_ms, store_ms and muxes_ms are what of a lease's time, on average, passes at the leader until the ask has its turn, is stored, and every mux has it. `connects` is of Ananta's Figure 14 (SIGCOMM 2013), with real connections: in a laboratory of three managers, two muxes and " +
		"four hosts, 28 servers open 20 connections a second each for a minute, by the VIPs that each two of them have, to 1,000 far ends of which the k-th is chosen in proportion to 1/k; a connection lasts " +
		"10 s on average, and its port does not go to the same far end again within four minutes. local_share, which the row of `leases` has too, is the share of the connections whose port was there without an ask, by the hosts' " +
		"counters: each packet that waits for a port, or is dropped without one, counts as a connection, also where one waits twice. minimum_share is the share of connects that took at most a millisecond, less than a lease takes, longer than 99 % of those " +
		"that four other servers without a VIP made at the same time (direct_p50_ms, direct_p99_ms); connect_p50_ms to connect_p99_ms are percentiles of all, from the SYN to its answer as the kernel measures it, or as the program does " +
		"where a SYN was sent again. `abuser`: the latency of a tenant that asks 200 times a second, in turns alone (alone_p99_ms) and beside a tenant whose " +
		"3,000 servers ask without end, 20,000 times a second. The second plot redraws Ananta's Figure 13 (SIGCOMM 2013): the same two tenants second by second, the " +
		"second one asking between the dashed lines; each ask of its servers waits for its share, 32,768 ranges a second as long as others ask. `memory`: allocating a range of a VIP (ns), freeing it (free_ns), and a connection's port (port_ns).",
	Cases:     []string{snatLeases, snatConnects, snatAbuser, snatOver, snatMemory},
	Plotted:   []string{"p50_ms", "p99_ms", "alone_p50_ms", "alone_p99_ms"},
	Unplotted: []string{snatConnects, snatMemory},
	Unit:      "ms",
	timeline: &timeline{
		of: snatOver, title: "A normal tenant beside one that asks without end (Ananta's Figure 13)", x: "s", y: "ms from ask to grant",
		at: "at_s", marked: "heavy_asks", lines: []timelineLine{{"p50_ms", "normal, median"}, {"p99_ms", "normal, 99 %"}, {"heavy_p50_ms", "heavy, median"}},
	},
	Takes: 6 * time.Minute, TakesShort: time.Minute,
	Goals: []Goal{
		atMost(snatLeases, "p50_ms", 2), atMost(snatLeases, "p99_ms", 15), atLeast(snatLeases, "per_s", 100_000), atLeast(snatConnects, localShareField, 0.99),
		atMost(snatAbuser, "p99_over_alone", 1.2), atMost(snatMemory, "ns", 40), atMost(snatMemory, "port_ns", 40),
	},
	run: runSNAT,
}

// snatTimes say how long the parts take.
type snatTimes struct {
	latency, sustained, turn time.Duration
	turns, vips              int
	// warm is how long there are asks before any counts, phase how long each of the three of the timeline is.
	warm, phase time.Duration
}

func runSNAT(ctx context.Context, o Options, emit func(Row)) error {
	times := snatTimes{latency: 20 * time.Second, sustained: time.Minute, turn: 4 * time.Second, turns: 6, vips: 2000, warm: 3 * time.Second, phase: 10 * time.Second}
	if o.Short {
		times = snatTimes{latency: time.Second, sustained: 2 * time.Second, turn: 500 * time.Millisecond, turns: 2, vips: 200, warm: time.Second, phase: time.Second}
	}
	var local Field
	if o.wants(snatLeases) || o.wants(snatConnects) {
		row, err := connectRow(ctx, o)
		if err != nil {
			return fmt.Errorf("case %s: %w", snatConnects, err)
		}
		if o.wants(snatConnects) {
			emit(row)
		}
		local = Field{localShareField, row.Get(localShareField)}
	}
	if o.wants(snatLeases) || o.wants(snatAbuser) || o.wants(snatOver) {
		if err := withSNAT(ctx, o, times.vips, func(ctx context.Context, r *snatRig) error { return r.measure(ctx, o, times, local, emit) }); err != nil {
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

// measure runs the cases of the managers. local is the share of connections with a port at once, which the row of leases has too.
func (r *snatRig) measure(ctx context.Context, o Options, times snatTimes, local Field, emit func(Row)) error {
	o.progressf("snat: warming up for %v", times.warm)
	if _, err := r.openLoop(ctx, r.normal[r.few:], 1000, times.warm); err != nil {
		return err
	}
	if o.wants(snatLeases) {
		o.progressf("snat: 1,000 asks a second for %v", times.latency)
		before, err := r.parts(ctx)
		if err != nil {
			return err
		}
		answers, err := r.openLoop(ctx, r.normal[r.few:], 1000, times.latency)
		if err != nil {
			return err
		}
		after, err := r.parts(ctx)
		if err != nil {
			return err
		}
		o.progressf("snat: all ask without end for %v", times.sustained)
		perSecond, err := r.closedLoop(ctx, times.sustained)
		if err != nil {
			return err
		}
		lat := tookMillis(answers)
		emit(Row{Case: snatLeases, Fields: append([]Field{
			{"p50_ms", Percentile(lat, 0.5)}, {"p70_ms", Percentile(lat, 0.7)}, {"p99_ms", Percentile(lat, 0.99)}, {"per_s", perSecond}, local, {"asks", len(lat)},
		}, after.since(before)...)})
	}
	victims := r.normal[:r.few]
	abusers := r.normal[len(victims):]
	abusers = abusers[:min(3000, len(abusers))]
	if o.wants(snatAbuser) {
		if err := r.besideAbuser(ctx, o, times, victims, abusers, emit); err != nil {
			return err
		}
	}
	if o.wants(snatOver) {
		return r.overTime(ctx, o, times.phase, victims, abusers, emit)
	}
	return nil
}

// victimAsks is how often a second the normal tenant asks that is measured beside an abuser.
const victimAsks = 200

// besideAbuser measures the normal tenant alone and beside the other one, in turns.
func (r *snatRig) besideAbuser(ctx context.Context, o Options, times snatTimes, victims, abusers []*snatServer, emit func(Row)) error {
	var alone, beside []float64
	for turn := range times.turns {
		o.progressf("snat: turn %d of %d, alone and beside an abuser", turn+1, times.turns)
		answers, err := r.openLoop(ctx, victims, victimAsks, times.turn)
		if err != nil {
			return err
		}
		alone = append(alone, tookMillis(answers)...)
		stop := r.abuse(abusers, nil)
		answers, err = r.openLoop(ctx, victims, victimAsks, times.turn)
		if err := errors.Join(err, stop()); err != nil {
			return err
		}
		beside = append(beside, tookMillis(answers)...)
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
	p99, alone99 := Percentile(beside, 0.99), Percentile(alone, 0.99)
	emit(Row{Case: snatAbuser, Fields: []Field{
		{"p50_ms", Percentile(beside, 0.5)}, {"p99_ms", p99}, {"alone_p50_ms", Percentile(alone, 0.5)}, {"alone_p99_ms", alone99}, {"p99_over_alone", p99 / alone99},
	}})
	return nil
}

// overTime lets the other tenant ask in the second of three phases, and emits a row for each second.
func (r *snatRig) overTime(ctx context.Context, o Options, phase time.Duration, victims, abusers []*snatServer, emit func(Row)) error {
	o.progressf("snat: three times %v, the abuser in the middle", phase)
	var mu sync.Mutex
	var heavy []snatAnswer
	began := time.Now()
	stopped := make(chan error, 1)
	go func() {
		if err := pause(ctx, phase); err != nil {
			stopped <- err
			return
		}
		stop := r.abuse(abusers, func(a snatAnswer) {
			mu.Lock()
			defer mu.Unlock()
			heavy = append(heavy, a)
		})
		err := pause(ctx, phase)
		stopped <- errors.Join(err, stop())
	}()
	answers, err := r.openLoop(ctx, victims, victimAsks, 3*phase)
	if err := errors.Join(err, <-stopped); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	// By when they were asked: what takes long belongs to the second in which it began.
	bin := func(answers []snatAnswer) map[int][]snatAnswer {
		out := map[int][]snatAnswer{}
		for _, a := range answers {
			second := int(a.at.Add(-a.took).Sub(began) / time.Second)
			out[second] = append(out[second], a)
		}
		return out
	}
	normals, heavies := bin(answers), bin(heavy)
	for second := range int(3 * phase / time.Second) {
		at := time.Duration(second) * time.Second
		fields := []Field{{"at_s", second}, {"heavy_asks", yes(at >= phase && at < 2*phase)}}
		if lat := tookMillis(normals[second]); len(lat) > 0 {
			fields = append(fields, Field{"p50_ms", Percentile(lat, 0.5)}, Field{"p99_ms", Percentile(lat, 0.99)})
		}
		if lat := tookMillis(heavies[second]); len(lat) > 0 {
			ranges := 0
			for _, a := range heavies[second] {
				ranges += a.ranges
			}
			fields = append(fields, Field{"heavy_p50_ms", Percentile(lat, 0.5)}, Field{"heavy_ranges", ranges})
		}
		emit(Row{Case: snatOver, Fields: fields})
	}
	return nil
}

// yes is 1, or 0 for no.
func yes(b bool) int {
	if b {
		return 1
	}
	return 0
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

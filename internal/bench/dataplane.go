package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

var dataplaneSuite = Suite{
	Name:  "dataplane",
	Title: "The mux's packet walk",
	About: "Nanoseconds per packet over a floor that only encapsulates, measured in the kernel's test runner on one " +
		"pinned CPU: a front program makes every repeat a fresh 64-byte TCP packet of a random flow; null target, floor and " +
		"mux take short turns; the figure is the median over the repetitions. The mux is the real program with tables " +
		"written by its own agent code: keyed hash, checks and counters on, 100 backends. `hash/N` has N flows to one " +
		"endpoint. `hash/1Mi-20000ep`, where every table misses the caches, is left out of the plot.",
	Plotted: []string{"floor_ns", "over_floor_ns"}, Unit: "ns per packet",
	Unplotted: []string{"hash/1Mi-20000ep"},
	Cases:     []string{"hash/1", "hash/1Mi", "hash6/1", "hash6/1Mi", "hash/1Mi-20000ep"},
	Takes:     90 * time.Second, TakesShort: 10 * time.Second,
	Goals: []Goal{{"hash/1", "over_floor_ns", 25}},
	run:   runDataplane,
}

// muxCase is the traffic and the tables of one case.
type muxCase struct {
	name    string
	traffic benchrun.Traffic
	members int // of each endpoint, out of benchBackends
}

// benchBackends is the number of backends of all cases together.
const benchBackends = 100

var muxCases = []muxCase{
	{"hash/1", benchrun.Traffic{Family: benchrun.IPv4, Flows: 1, VIPs: 1}, benchBackends},
	{"hash/1Mi", benchrun.Traffic{Family: benchrun.IPv4, Flows: 1 << 20, VIPs: 1}, benchBackends},
	{"hash6/1", benchrun.Traffic{Family: benchrun.IPv6, Flows: 1, VIPs: 1}, benchBackends},
	{"hash6/1Mi", benchrun.Traffic{Family: benchrun.IPv6, Flows: 1 << 20, VIPs: 1}, benchBackends},
	// Five members each: rings of 512 slots, 20 MB in all.
	{"hash/1Mi-20000ep", benchrun.Traffic{Family: benchrun.IPv4, Flows: 1 << 20, VIPs: 20000}, 5},
}

func runDataplane(ctx context.Context, o Options, emit func(Row)) error {
	cpu, err := benchrun.LastCPU()
	if err != nil {
		return err
	}
	for _, c := range muxCases {
		if !o.wants(c.name) {
			continue
		}
		err := benchrun.Pinned(cpu, func() error {
			row, err := c.run(ctx, o)
			if err == nil {
				emit(row)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
	}
	return nil
}

// Sizes of a run. A repetition is long enough to pass through the tables many times over, short enough that the
// machine does not change during it.
const (
	dataplaneRounds  = 15
	dataplanePackets = 1 << 20
	shortRounds      = 1
	shortPackets     = 1 << 16
	// spotChecks is the number of flows whose outer header is compared with the walk that Trace describes.
	spotChecks = 64
)

// run measures one case.
func (c muxCase) run(ctx context.Context, o Options) (Row, error) {
	rounds, packets := dataplaneRounds, dataplanePackets
	if o.Short {
		rounds, packets = shortRounds, shortPackets
	}
	mux, err := benchrun.OpenMux()
	if err != nil {
		return Row{}, err
	}
	defer mux.Close()
	state, hops := c.tables()
	if err := mux.SetNextHops(hops); err != nil {
		return Row{}, err
	}
	if err := mux.Apply(state); err != nil {
		return Row{}, err
	}
	harness, err := benchrun.Open(c.traffic, false)
	if err != nil {
		return Row{}, err
	}
	defer harness.Close()
	if err := c.check(harness, mux); err != nil {
		return Row{}, err
	}
	before, err := mux.Counters()
	if err != nil {
		return Row{}, err
	}
	got, err := harness.Compare(ctx, mux.Target(), rounds, packets, func(i int) {
		o.progressf("dataplane %s: repetition %d of %d", c.name, i+1, rounds)
	})
	if err != nil {
		return Row{}, err
	}
	after, err := mux.Counters()
	if err != nil {
		return Row{}, err
	}
	if sent := after.Reasons["forwarded"] - before.Reasons["forwarded"]; sent != got.Packets {
		return Row{}, fmt.Errorf("%d of %d packets were forwarded: want all (reasons %v)", sent, got.Packets, after.Reasons)
	}
	return c.row(got), nil
}

// row sums a comparison up.
func (c muxCase) row(got benchrun.Comparison) Row {
	var over, floor []float64
	for _, r := range got.Rounds {
		over, floor = append(over, r.OverFloor()), append(floor, r.NetFloor())
	}
	return Row{Case: c.name, Fields: []Field{
		{"over_floor_ns", round(Median(over))},
		{"floor_ns", round(Median(floor))},
		{"min_over_floor_ns", round(slices.Min(over))},
		{"runs", len(over)},
		{"packets", got.Packets},
	}}
}

// check sends single packets of flows spread over the traffic and compares each with what Trace says of it.
func (c muxCase) check(harness *benchrun.Harness, mux *benchrun.Mux) error {
	for i := range uint32(spotChecks) {
		flow := i * (c.traffic.Flows / spotChecks)
		run, err := harness.One(mux.Target(), flow)
		if err != nil {
			return err
		}
		want, err := mux.Trace(run.Last)
		if err != nil {
			return err
		}
		outer, err := run.Outer(c.traffic.Family)
		if err != nil {
			return fmt.Errorf("flow %d, %+v: verdict %d: %w", flow, run.Last, run.Verdict, err)
		}
		if outer.Destination != want.Outer || outer.Source != want.Source {
			return fmt.Errorf("flow %d, %+v: outer header %s to %s, trace says %s to %s (%s)",
				flow, run.Last, outer.Source, outer.Destination, want.Source, want.Outer, want.Verdict)
		}
	}
	return nil
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

var hostFlowsSuite = Suite{
	Name:  "hostflows",
	Title: "The host's flow table, full of live connections",
	About: "`flows-4Mi`: 4 Mi connections begin, each by a client's packet and the server's answer, in a table with room for 8 Mi; `-full` in one with " +
		"room for 4 Mi. `placed` is the percentage of them that the table holds then, `evicted` are those that gave way to a newcomer before their servers answered. A million SYNs of other flows follow: `lost` are the " +
		"established flows that are gone after that. `begin_…` is what single packets took that begin a flow, from one to the next, clock, front and " +
		"whatever interrupted the CPU included (an interrupt takes several microseconds); `known_…` the same of a million packets whose flow is known. `sweep_ms` is " +
		"the CPU time of a pass through the table by the agent, `step_max_us` of its longest step, between two of which it waits; `expire_…` those of a pass " +
		"that takes out all flows, because their time is over.",
	Plotted: []string{"begin_p50_ns", "begin_p999_ns", "known_p50_ns", "known_p999_ns"}, Unit: "ns per packet",
	Cases: []string{"flows-4Mi", "flows-4Mi-full"},
	Takes: 50 * time.Second, TakesShort: 20 * time.Second,
	Goals: []Goal{none("flows-4Mi", "lost"), none("flows-4Mi-full", "lost")},
	run:   runHostFlows,
}

func runHostFlows(ctx context.Context, o Options, emit func(Row)) error {
	for _, c := range floodCases {
		if !o.wants(c.name) {
			continue
		}
		row, err := c.run(ctx, o)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		emit(row)
	}
	return nil
}

// floodCase fills a host's flow table with live connections.
type floodCase struct {
	name            string
	flows, capacity uint32
}

var floodCases = []floodCase{{"flows-4Mi", 4 * mi, 8 * mi}, {"flows-4Mi-full", 4 * mi, 4 * mi}}

const (
	shortFlood = 1 << 16
	// floodSYNs is the number of new flows after the table is full.
	floodSYNs = mi
	// knownProbes is the number of packets of known flows that single packets are compared with.
	knownProbes = mi
	// overAfter is the final idle time. overWait lets it expire: times are coarse by about a
	// second.
	overAfter = time.Second
	overWait  = 4 * time.Second
)

// run fills a table.
func (c floodCase) run(ctx context.Context, o Options) (row Row, err error) {
	if o.Short {
		c.flows, c.capacity = shortFlood, shortFlood*(c.capacity/c.flows)
	}
	cpu, err := benchrun.LastCPU()
	if err != nil {
		return row, err
	}
	name := o.LabName + "-flood"
	ifindex, err := hostNamespace(name)
	if err != nil {
		return row, errors.Join(err, netdev.DeleteNamespace(name))
	}
	defer func() { err = errors.Join(err, netdev.DeleteNamespace(name)) }()
	err = netdev.In(name, func() error {
		unpin, err := benchrun.PinThread(cpu)
		if err != nil {
			return err
		}
		defer unpin()
		o.progressf("hostflows %s: a table for %d", c.name, c.capacity)
		host, err := benchrun.OpenHost(ifindex, hostPins(name), c.capacity)
		if err != nil {
			return err
		}
		f := flood{c: c, o: o, host: host}
		row, err = f.measure(ctx)
		return errors.Join(err, host.Close())
	})
	return row, err
}

// flood is a table that is being filled.
type flood struct {
	c       floodCase
	o       Options
	host    *benchrun.Host
	harness *benchrun.HostHarness
}

func (f *flood) measure(ctx context.Context) (Row, error) {
	if err := f.host.Apply(hostState(benchHostIdle, false, false)); err != nil {
		return Row{}, err
	}
	var err error
	if f.harness, err = benchrun.OpenHostHarness(f.host, benchrun.HostTraffic{Flows: f.c.flows}); err != nil {
		return Row{}, err
	}
	defer f.harness.Close()
	f.o.progressf("hostflows %s: %d connections begin", f.c.name, f.c.flows)
	begun, err := f.each(ctx, 0, f.c.flows, false, true)
	if err != nil {
		return Row{}, err
	}
	placed, sweep, err := f.trusted()
	if err != nil {
		return Row{}, err
	}
	counters, err := f.host.Counters()
	if err != nil {
		return Row{}, err
	}
	evicted := counters.Reasons["flow_evicted"]
	known, err := f.each(ctx, 0, min(knownProbes, f.c.flows), false, false)
	if err != nil {
		return Row{}, err
	}
	f.o.progressf("hostflows %s: SYNs of other flows", f.c.name)
	if _, err := f.each(ctx, f.c.flows, min(floodSYNs, f.c.flows), true, false); err != nil {
		return Row{}, err
	}
	left, _, err := f.trusted()
	if err != nil {
		return Row{}, err
	}
	expire, gone, err := f.expire(ctx)
	if err != nil {
		return Row{}, err
	}
	tables, err := f.host.Footprint()
	if err != nil {
		return Row{}, err
	}
	return Row{Case: f.c.name, Fields: []Field{
		{"placed", round(100 * float64(placed) / float64(f.c.flows))}, {"evicted", evicted}, {"lost", placed - min(left, placed)}, {"flows", int(f.c.flows)}, {"room", int(f.c.capacity)},
		{"bytes_per_flow", round(float64(tables["flow_tags"]+tables["flow_records"]+tables["flow_cookies"]) / float64(f.c.capacity))},
		{"begin_p50_ns", round(Median(begun))}, {"begin_p999_ns", round(Percentile(begun, 0.999))}, {"begin_max_us", round(Percentile(begun, 1) / 1e3)},
		{"known_p50_ns", round(Median(known))}, {"known_p999_ns", round(Percentile(known, 0.999))}, {"known_max_us", round(Percentile(known, 1) / 1e3)},
		{"sweep_ms", round(sweep.total)}, {"step_max_us", round(sweep.longest)},
		{"expire_ms", round(expire.total)}, {"expire_step_max_us", round(expire.longest)}, {"expired", gone},
	}}, nil
}

// each sends a packet of each of the flows and returns their durations. If answered is set, the
// servers reply.
func (f *flood) each(ctx context.Context, begin, flows uint32, syn, answered bool) (ns []float64, err error) {
	for at := uint32(0); at < flows; at += uint32(benchrun.MaxEach) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n := int(min(flows-at, uint32(benchrun.MaxEach)))
		took, err := f.harness.Each(benchrun.HostIn, begin+at, n, syn)
		if err != nil {
			return nil, err
		}
		ns = append(ns, took...)
		if !answered {
			continue
		}
		if _, err := f.harness.Each(benchrun.HostOut, begin+at, n, false); err != nil {
			return nil, err
		}
	}
	return ns, nil
}

// sweepTime is the CPU time of a sweep: the total in ms, and of its longest step in µs.
type sweepTime struct{ total, longest float64 }

// sweep sweeps the complete table.
func (f *flood) sweep() (t sweepTime, err error) {
	// Run the garbage collector first, to keep its work out of the measurement.
	runtime.GC()
	for range f.host.SweepSteps() {
		before, err := threadCPU()
		if err != nil {
			return t, err
		}
		if err := f.host.SweepStep(); err != nil {
			return t, err
		}
		after, err := threadCPU()
		if err != nil {
			return t, err
		}
		took := after - before
		t.total += float64(took) / 1e6
		t.longest = max(t.longest, float64(took)/1e3)
	}
	return t, nil
}

// trusted counts the established flows.
func (f *flood) trusted() (uint64, sweepTime, error) {
	t, err := f.sweep()
	if err != nil {
		return 0, t, err
	}
	counters, err := f.host.Counters()
	return counters.Flows.ByClass[dataplane.FlowTrusted], t, err
}

// expire lets all flows time out and runs the sweep that removes them. It returns how many were
// removed.
func (f *flood) expire(ctx context.Context) (t sweepTime, gone uint64, err error) {
	f.o.progressf("hostflows %s: all flows end", f.c.name)
	short := lb.HostIdle{Established: overAfter, Opening: overAfter, Closing: overAfter, UDP: overAfter, Other: overAfter}
	if err := f.host.Apply(hostState(short, false, false)); err != nil {
		return t, 0, err
	}
	before, err := f.host.Counters()
	if err != nil {
		return t, 0, err
	}
	// A flow's next packet sets its new timeout.
	if _, err := f.each(ctx, 0, f.c.flows, false, false); err != nil {
		return t, 0, err
	}
	if err := pause(ctx, overWait); err != nil {
		return t, 0, err
	}
	if t, err = f.sweep(); err != nil {
		return t, 0, err
	}
	after, err := f.host.Counters()
	if err != nil {
		return t, 0, err
	}
	if n := after.Flows.ByClass[dataplane.FlowTrusted]; n != 0 {
		return t, 0, fmt.Errorf("%d flows are there though their time is over", n)
	}
	return t, after.Flows.Expired - before.Flows.Expired, nil
}

// threadCPU returns the CPU time of the current thread.
func threadCPU() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

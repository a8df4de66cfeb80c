package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/netdev"
)

var liveSuite = Suite{
	Name:  "live",
	Title: "Live frames through three namespaces",
	About: "Packets per second that arrive behind the mux, and behind a program in its place that only encapsulates and " +
		"redirects. A generator makes 64-byte TCP frames of random flows in the kernel (`BPF_F_TEST_XDP_LIVE_FRAMES`) and sends " +
		"them by a veth into a second namespace, where the program under test sends them by another veth into a third, which " +
		"counts and drops them: on each CPU one generator, whose frames stay on that CPU all the way, so that generator, devices " +
		"and sink are part of both figures. `share` is the percentage of the floor's rate, `scaling` that of `cpus` CPUs over " +
		"one, `floor_scaling` the same of the floor: what the machine itself gives. Flows are in the flow table and trusted. " +
		"`katran_share` is Katran's in such a set-up, all on one CPU.",
	Plotted: []string{"floor_pps", "pps"}, Unit: "packets per second",
	Cases: []string{"flow/1", "flow/1Mi", "flow/1-2cpus", "flow/1Mi-2cpus"},
	Takes: 90 * time.Second, TakesShort: 10 * time.Second,
	Goals: []Goal{
		atLeast("flow/1", "share", 90), atLeast("flow/1Mi", "share", 70),
		atLeast("flow/1-2cpus", "scaling", 1.9), atLeast("flow/1Mi-2cpus", "scaling", 1.9),
	},
	run: runLive,
}

// liveCase is the traffic of one case.
type liveCase struct {
	name   string
	flows  uint32
	cpus   int
	katran float64 // percent; 0: unknown
}

var liveCases = []liveCase{{"flow/1", 1, 1, 72}, {"flow/1Mi", mi, 1, 37}, {"flow/1-2cpus", 1, 2, 0}, {"flow/1Mi-2cpus", mi, 2, 0}}

// Sizes of a run: packets that each CPU sends in one turn.
const (
	liveRounds       = 11
	livePackets      = 1 << 20
	shortLivePackets = 1 << 16
)

func runLive(ctx context.Context, o Options, emit func(Row)) error {
	cpus, err := benchrun.CPUs()
	if err != nil {
		return err
	}
	single := map[uint32]rates{} // of one CPU, by flows
	for _, c := range liveCases {
		// The single-CPU case is measured as a reference even if only its two-CPU case is selected.
		if !o.wants(c.name) && !(c.cpus == 1 && len(o.Cases) > 0 && o.wants(c.name+"-2cpus")) {
			continue
		}
		if c.cpus > len(cpus) {
			o.progressf("live %s: left out, this machine has %d CPUs", c.name, len(cpus))
			continue
		}
		got, err := c.run(ctx, o, cpus[len(cpus)-c.cpus:])
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		if c.cpus == 1 {
			single[c.flows] = got
		}
		if o.wants(c.name) {
			emit(c.row(got, single[c.flows]))
		}
	}
	return nil
}

// rates are packets per second, one figure per round.
type rates struct{ floor, mux []float64 }

func (c liveCase) row(got, single rates) Row {
	var shares []float64
	for i := range got.mux {
		shares = append(shares, 100*got.mux[i]/got.floor[i])
	}
	row := Row{Case: c.name, Fields: []Field{
		{"pps", round(Median(got.mux))}, {"floor_pps", round(Median(got.floor))}, {"cpus", c.cpus},
		{"share", round(Median(shares))}, {"runs", len(got.mux)},
	}}
	if c.cpus > 1 {
		row.Fields = append(row.Fields, Field{"scaling", round(Median(got.mux) / Median(single.mux))},
			Field{"floor_scaling", round(Median(got.floor) / Median(single.floor))})
	}
	if c.katran != 0 {
		row.Fields = append(row.Fields, Field{"katran_share", c.katran})
	}
	return row
}

// run measures floor and mux in turns.
func (c liveCase) run(ctx context.Context, o Options, cpus []int) (got rates, err error) {
	rounds, packets := liveRounds, uint32(livePackets)
	if o.Short {
		rounds, packets = 1, shortLivePackets
	}
	s, err := c.open(o)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for i := range rounds {
		o.progressf("live %s: repetition %d of %d", c.name, i+1, rounds)
		for _, t := range []struct {
			target benchrun.Target
			into   *[]float64
		}{{s.live.Floor(), &got.floor}, {s.mux.Target(), &got.mux}} {
			if err := ctx.Err(); err != nil {
				return got, err
			}
			pps, err := s.turn(t.target, cpus, packets, uint64(i+1))
			if err != nil {
				return got, err
			}
			*t.into = append(*t.into, pps)
		}
	}
	return got, nil
}

// stage holds the namespaces and programs of a case.
type stage struct {
	generate, balance, drop string // namespaces
	live                    *benchrun.Live
	mux                     *benchrun.Mux
	traffic                 benchrun.Traffic
	device                  int // the generators'
	generators              []*benchrun.Generator
	undo                    []func() error
}

func (s *stage) close() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	return errors.Join(errs...)
}

// open makes namespaces, devices and programs, and fills the mux's table with all flows.
func (c liveCase) open(o Options) (*stage, error) {
	s := &stage{
		generate: o.LabName + "-live-gen", balance: o.LabName + "-live-mux", drop: o.LabName + "-live-sink",
		traffic: v4(c.flows, 1),
	}
	err := s.build(c)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// Names of the devices. Both ends of a pair have one name.
const (
	liveIn  = "in"
	liveOut = "out"
	liveMTU = 1500
)

func (s *stage) build(c liveCase) error {
	for _, name := range []string{s.generate, s.balance, s.drop} {
		// Remove the namespace that a killed run left first.
		if err := netdev.DeleteNamespace(name); err != nil {
			return err
		}
		if err := netdev.CreateNamespace(name); err != nil {
			return err
		}
		s.undo = append(s.undo, func() error { return netdev.DeleteNamespace(name) })
	}
	if err := joinBy(s.generate, s.balance, liveIn); err != nil {
		return err
	}
	if err := joinBy(s.balance, s.drop, liveOut); err != nil {
		return err
	}
	if err := s.load(c); err != nil {
		return err
	}
	return s.attach()
}

// joinBy joins two namespaces by a veth whose ends have the same name.
func joinBy(a, b, device string) error {
	from, err := netdev.OpenNamespace(a)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := netdev.OpenNamespace(b)
	if err != nil {
		return err
	}
	defer to.Close()
	return netdev.AddVeth(netdev.VethEnd{Namespace: from, Name: device}, netdev.VethEnd{Namespace: to, Name: device}, liveMTU)
}

// index returns the index of a device in a namespace.
func index(namespace, device string) (n int, err error) {
	err = netdev.In(namespace, func() error {
		i, err := net.InterfaceByName(device)
		if err == nil {
			n = i.Index
		}
		return err
	})
	return n, err
}

// load loads mux and generators and fills the mux's table with the flows.
func (s *stage) load(c liveCase) (err error) {
	out, err := index(s.balance, liveOut)
	if err != nil {
		return err
	}
	if s.mux, err = benchrun.OpenLiveMux(dataplane.MuxLimits{Flows: 4 * mi}); err != nil {
		return err
	}
	s.undo = append(s.undo, s.mux.Close)
	tables := muxCase{name: c.name, traffic: s.traffic, members: benchBackends, table: 4 * mi}
	state, hops := tables.tables()
	for outer := range hops {
		hops[outer] = dataplane.NextHop{MAC: [6]byte{2, 0, 0, 0, 0, 1}, Ifindex: out}
	}
	if err := s.mux.SetNextHops(hops); err != nil {
		return err
	}
	if err := s.mux.Apply(state); err != nil {
		return err
	}
	harness, err := benchrun.Open(s.traffic, benchrun.MuxFrags)
	if err != nil {
		return err
	}
	defer harness.Close()
	if _, err := tables.begin(harness, s.mux); err != nil {
		return err
	}
	if s.device, err = index(s.generate, liveIn); err != nil {
		return err
	}
	for range c.cpus {
		g, err := benchrun.OpenGenerator(s.traffic, s.device)
		if err != nil {
			return err
		}
		s.generators = append(s.generators, g)
		s.undo = append(s.undo, g.Close)
	}
	return nil
}

// attach attaches floor and sink to their devices.
func (s *stage) attach() (err error) {
	if s.live, err = benchrun.OpenLive(); err != nil {
		return err
	}
	s.undo = append(s.undo, s.live.Close)
	in, err := index(s.balance, liveIn)
	if err != nil {
		return err
	}
	out, err := index(s.balance, liveOut)
	if err != nil {
		return err
	}
	sink, err := index(s.drop, liveOut)
	if err != nil {
		return err
	}
	if err := netdev.In(s.balance, func() error { return s.live.AttachUnder(in, out) }); err != nil {
		return err
	}
	return netdev.In(s.drop, func() error { return s.live.AttachSink(sink) })
}

// turn sends packets from every CPU in parallel and returns the packets per second that arrived.
func (s *stage) turn(t benchrun.Target, cpus []int, packets uint32, seed uint64) (float64, error) {
	if err := s.live.Use(t); err != nil {
		return 0, err
	}
	errs := make([]error, len(cpus))
	var all sync.WaitGroup
	for i, cpu := range cpus {
		all.Go(func() {
			errs[i] = netdev.In(s.generate, func() error {
				unpin, err := benchrun.PinThread(cpu)
				if err != nil {
					return err
				}
				defer unpin()
				return s.generators[i].Send(packets, seed*0x9e3779b97f4a7c15+uint64(i))
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	arrived, err := s.live.Arrivals()
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, cpu := range cpus {
		a := arrived[cpu]
		if float64(a.Packets) < wantArrived*float64(packets) {
			return 0, fmt.Errorf("%s: %d of %d packets of CPU %d arrived: want %g", t, a.Packets, packets, cpu, wantArrived)
		}
		sum += a.PerSecond
	}
	return sum, nil
}

// wantArrived is the share of packets that must arrive, because a full ring of a veth drops some.
const wantArrived = 0.5

package bench

import (
	"fmt"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/ring"
)

// katranPeer is Katran's program, ready to be measured in turns with the mux, and its counters
// before the run.
type katranPeer struct {
	c       muxCase
	program *benchrun.Katran
	before  benchrun.KatranCounters
}

// katranSets returns the pools of the case, with the rings that Katran has for them: Maglev's with
// a prime number of slots.
func (c muxCase) katranSets() []benchrun.KatranSet {
	sets := make([]benchrun.KatranSet, benchBackends/c.members)
	var b ring.Builder
	for s := range sets {
		var members []ring.Member
		for id := range c.members {
			i := s*c.members + id
			sets[s].Reals = append(sets[s].Reals, i)
			members = append(members, ring.Member{ID: uint16(id), DIP: backendAddress(c.traffic.Family, i), Port: benchrun.Port, Weight: 1})
		}
		sets[s].Ring = b.BuildExact(benchrun.KatranRing, members)
	}
	return sets
}

// openKatran loads Katran's program with the case's VIPs, reals and capacity for connections,
// checks single packets and fills its table with the flows.
func (c muxCase) openKatran(o Options, harness *benchrun.Harness) (_ *katranPeer, err error) {
	tables := benchrun.KatranTables{Family: c.traffic.Family, VIPs: c.traffic.VIPs, Sets: c.katranSets(), Flows: c.table}
	if tables.CPU, err = benchrun.LastCPU(); err != nil {
		return nil, err
	}
	for i := range benchBackends {
		tables.Reals = append(tables.Reals, backendAddress(c.traffic.Family, i))
	}
	o.progressf("dataplane %s: load Katran with %d VIPs", c.name, tables.VIPs)
	program, err := benchrun.OpenKatran(o.Katran, tables)
	if err != nil {
		return nil, err
	}
	p := &katranPeer{c: c, program: program}
	if err := p.begin(harness); err != nil {
		program.Close()
		return nil, fmt.Errorf("Katran: %w", err)
	}
	return p, nil
}

// begin checks single packets, fills the table with the flows and records the counters.
func (p *katranPeer) begin(harness *benchrun.Harness) (err error) {
	for i := range uint32(spotChecks) {
		run, err := harness.One(p.program.Target(), i*(p.c.traffic.Flows/spotChecks))
		if err != nil {
			return err
		}
		if err := p.program.Check(run); err != nil {
			return err
		}
	}
	if p.c.table > 0 {
		if _, err := harness.Warm(p.program.Target()); err != nil {
			return err
		}
	}
	for i := range uint64(floodRuns) {
		if p.c.traffic.New {
			if _, err := harness.Run(p.program.Target(), benchrun.MaxPackets, i+1); err != nil {
				return err
			}
		}
	}
	p.before, err = p.program.Counters()
	return err
}

// end checks by Katran's counters that the run matched its case, and returns its figures.
func (p *katranPeer) end(harness *benchrun.Harness, got benchrun.Comparison) ([]Field, error) {
	const program = 1 // index in the result of Compare; the mux is the first
	after, err := p.program.Counters()
	if err != nil {
		return nil, err
	}
	packets := got.Packets[program]
	if sent := after.Sent - p.before.Sent; sent != packets {
		return nil, fmt.Errorf("Katran: %d of %d packets were sent: want all", sent, packets)
	}
	if p.c.table > 0 && after.Fallback != 0 {
		return nil, fmt.Errorf("Katran: %d packets found no connection table: want 0", after.Fallback)
	}
	var over, mux []float64
	for _, r := range got.Rounds {
		over, mux = append(over, r.OverFloor(program)), append(mux, r.OverFloor(0))
	}
	fields := []Field{
		{"katran_over_floor_ns", round(Median(over))},
		{"katran_min_over_floor_ns", round(slices.Min(over))},
		{"katran_ratio", round(Median(over) / Median(mux))},
	}
	known := 1 - float64(after.Missed-p.before.Missed)/float64(packets)
	switch {
	case p.c.traffic.New:
		if known != 0 {
			return nil, fmt.Errorf("Katran: %g of the new flows were known: want 0", known)
		}
		return fields, p.evicts(harness)
	case p.c.table > 0:
		if known < wantKnown {
			return nil, fmt.Errorf("Katran: %g of the packets found their connection: want %g", known, wantKnown)
		}
		return append(fields, Field{"katran_hits", round(100 * known)}), nil
	}
	return fields, nil
}

// evicts checks that a new flow is stored and that the first flows were evicted.
func (p *katranPeer) evicts(harness *benchrun.Harness) error {
	run, err := harness.Run(p.program.Target(), 1, 1)
	if err != nil {
		return err
	}
	if known, err := p.program.Knows(run.Last); err != nil || !known {
		return fmt.Errorf("Katran: %+v was not remembered (%v): was the object built with a MAX_CONN_RATE out of reach?", run.Last, err)
	}
	for flow := range uint32(spotChecks) {
		old, err := harness.One(harness.Null(), flow)
		if err != nil {
			return err
		}
		if known, err := p.program.Knows(old.Last); err != nil || known {
			return fmt.Errorf("Katran: %+v is still known (%v): want a full table that evicts it", old.Last, err)
		}
	}
	return nil
}

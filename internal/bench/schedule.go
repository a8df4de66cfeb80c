package bench

import (
	"context"
	"fmt"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/sched"
)

// scheduleCase is a scheduler that selects the members of new flows. Every packet begins a flow.
type scheduleCase struct {
	name   string
	kind   dataplane.ScheduleKind
	places int // of the sequence
}

// scheduleFlows is the size of a flow table that fits into caches, so that its cost does not hide
// the cost of a choice.
const scheduleFlows = 512 * ki

var scheduleCases = []scheduleCase{
	{"sched/round-robin", dataplane.ScheduleNext, benchBackends},
	{"sched/least-connections", dataplane.ScheduleNext, sched.MaxLength},
	{"sched/random", dataplane.ScheduleRandom, benchBackends},
	{"sched/p2c", dataplane.ScheduleLighter, benchBackends},
}

// run measures the program with the scheduler, and for comparison with the ring's choice.
func (s scheduleCase) run(ctx context.Context, o Options) (Row, error) {
	c := muxCase{name: s.name, traffic: benchrun.Traffic{Family: benchrun.IPv4, Flows: scheduleFlows / 4, VIPs: 1, New: true}, members: benchBackends, table: scheduleFlows}
	harness, err := benchrun.Open(c.traffic, benchrun.MuxFrags)
	if err != nil {
		return Row{}, err
	}
	defer harness.Close()
	var programs []benchrun.Target
	var muxes []*benchrun.Mux
	var audits []muxAudit
	for _, kind := range []dataplane.ScheduleKind{s.kind, dataplane.ScheduleRing} {
		mux, err := s.open(c, kind)
		if err != nil {
			return Row{}, err
		}
		defer mux.Close()
		audit, err := c.begin(harness, mux)
		if err != nil {
			return Row{}, err
		}
		programs, muxes, audits = append(programs, mux.Target()), append(muxes, mux), append(audits, audit)
	}
	effort := c.effort(o)
	got, err := harness.Compare(ctx, programs, effort, func(i int) {
		o.progressf("dataplane %s: repetition %d of %d", s.name, i+1, effort.Rounds)
	})
	if err != nil {
		return Row{}, err
	}
	for i, audit := range audits {
		if _, err := audit.end(muxes[i], got.Packets[i]); err != nil {
			return Row{}, err
		}
	}
	var over []float64
	for _, r := range got.Rounds {
		over = append(over, r.Programs[0]-r.Programs[1])
	}
	ring, alone, err := alone(muxes[0], c)
	if err != nil {
		return Row{}, err
	}
	fields := []Field{{"over_ring_ns", round(Median(over))}, {"choice_ns", round(alone)}, {"ring_choice_ns", round(ring)}}
	return Row{Case: s.name, Fields: append(fields, comparisonFields(got)...)}, nil
}

// alone returns the cost of the ring's choice, and of the scheduler's, by themselves.
func alone(mux *benchrun.Mux, c muxCase) (ring, scheduler float64, err error) {
	state, _ := c.tables()
	choices, err := benchrun.OpenChoices(mux, state.Endpoints[0].Key)
	if err != nil {
		return 0, 0, err
	}
	defer choices.Close()
	const rounds = 31
	var byRing, byScheduler []float64
	for range rounds {
		cost, err := choices.Round()
		if err != nil {
			return 0, 0, err
		}
		byRing, byScheduler = append(byRing, cost.Ring), append(byScheduler, cost.Scheduler)
	}
	return Median(byRing), Median(byScheduler), nil
}

// open makes a mux with this kind of scheduler.
func (s scheduleCase) open(c muxCase, kind dataplane.ScheduleKind) (*benchrun.Mux, error) {
	mux, err := benchrun.OpenMux(dataplane.MuxLimits{Flows: c.table})
	if err != nil {
		return nil, err
	}
	state, hops := c.tables()
	schedule := dataplane.Schedule{Kind: kind}
	for i := range state.Endpoints {
		state.Endpoints[i].Scheduler, schedule.Endpoint = kind, state.Endpoints[i].Key
	}
	for place := range s.places {
		schedule.Sequence = append(schedule.Sequence, uint16(place%benchBackends))
	}
	for id := range uint16(benchBackends) {
		schedule.Loads = append(schedule.Loads, dataplane.MemberLoad{Member: id, Word: sched.WordOf(sched.Member{Weight: 1, Load: float64(id % 7)})})
	}
	err = mux.SetNextHops(hops)
	if err == nil {
		err = mux.Apply(state)
	}
	if err == nil && kind != dataplane.ScheduleRing {
		err = mux.SetSchedules([]dataplane.Schedule{schedule})
	}
	if err != nil {
		mux.Close()
		return nil, fmt.Errorf("tables: %w", err)
	}
	return mux, nil
}

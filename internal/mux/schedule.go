package mux

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/sched"
)

const (
	// scheduleEvery is the interval of schedulers if no host reports its sample interval.
	scheduleEvery = load.SampleEvery
	// scheduleWay is the average time that a load report takes from the host to the mux.
	scheduleWay = 20 * time.Millisecond
)

// schedulePace is how often an endpoint's scheduler runs, and how old the loads are then.
type schedulePace struct {
	every time.Duration // the shortest sample interval of the hosts
	lag   time.Duration // mean age of the reported loads: half a sample interval plus scheduleWay
}

// paceOf returns the pace of a scheduler for the reported loads.
func paceOf(told []load.Load) schedulePace {
	p := schedulePace{scheduleEvery, scheduleEvery/2 + scheduleWay}
	if len(told) == 0 {
		return p
	}
	p.every = load.MaxSample
	sum := time.Duration(0)
	for _, l := range told {
		p.every, sum = min(p.every, l.Interval()), sum+l.Interval()
	}
	p.lag = sum/time.Duration(len(told))/2 + scheduleWay
	return p
}

// schedules are the endpoints of the plan whose new flows are not assigned by the ring.
type schedules struct {
	// due is notified when sequences must be made anew immediately, because the plan or the health
	// of members changed.
	due chan struct{}

	mu sync.Mutex
	of map[lb.EndpointKey]*scheduled
	// fault is the last logged error of setting sequences.
	fault string
}

// scheduled is an endpoint with a scheduler.
type scheduled struct {
	kind    dataplane.ScheduleKind
	by      string
	desk    sched.Desk
	unknown int // members whose load is unknown or stale
	taken   uint32
	// fresh: the tables may not have the current sequence.
	fresh bool
	pace  schedulePace
	at    time.Time // the time of the last run
}

func newSchedules() schedules {
	return schedules{due: make(chan struct{}, 1), of: map[lb.EndpointKey]*scheduled{}}
}

// scheduleKind returns how the program selects a member of an endpoint for a new flow.
func scheduleKind(e *plan.Endpoint) dataplane.ScheduleKind {
	if e.Affinity == lb.AffinityHash || e.OnePacket {
		return dataplane.ScheduleRing
	}
	switch e.Scheduler {
	case "", lb.SchedulerMaglev:
		return dataplane.ScheduleRing
	case lb.SchedulerRandom:
		return dataplane.ScheduleRandom
	case lb.SchedulerP2C:
		return dataplane.ScheduleLighter
	}
	return dataplane.ScheduleNext
}

// follow applies changes of the applied plan.
func (s *schedules) follow(changes []plan.EndpointChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		e := c.After
		if e == nil || scheduleKind(e) == dataplane.ScheduleRing {
			delete(s.of, c.Key())
			continue
		}
		had := s.of[e.Key]
		if had == nil || had.desk.Scheduler != e.Scheduler || had.by != e.ScheduleBy {
			units := e.ScheduleBy == lb.ByCPU || e.ScheduleBy == lb.ByLoad
			s.of[e.Key] = &scheduled{kind: scheduleKind(e), by: e.ScheduleBy, desk: sched.Desk{Scheduler: e.Scheduler, Units: units}}
		}
		s.of[e.Key].fresh = true
	}
}

// Schedule updates the tables' sequences and loads until ctx ends.
func (a *Agent) Schedule(ctx context.Context) {
	next := scheduleEvery
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-a.schedules.due:
			all = true
		case <-a.o.Clock.After(next):
		}
		next = a.schedule(all)
	}
}

// schedule updates sequences and loads in the tables, of all endpoints or of those that are due. It
// returns the time until the next one is due.
func (a *Agent) schedule(all bool) time.Duration {
	a.schedules.mu.Lock()
	defer a.schedules.mu.Unlock()
	var keys []lb.EndpointKey
	now := a.o.Clock.Now()
	for key, s := range a.schedules.of {
		if all || now.Sub(s.at) >= s.pace.every {
			keys = append(keys, key)
		}
	}
	a.scheduleLocked(keys, now)
	next := load.MaxSample
	for _, s := range a.schedules.of {
		next = min(next, s.pace.every-now.Sub(s.at))
	}
	return max(next, 0)
}

// scheduleLocked is schedule for some endpoints. The caller holds schedules.mu.
func (a *Agent) scheduleLocked(keys []lb.EndpointKey, now time.Time) {
	if len(keys) == 0 {
		return
	}
	slices.SortFunc(keys, plan.CompareKeys)
	done := a.o.Tables.Scheduled(keys)
	members := a.scheduleMembers(keys, done, now)
	var next []dataplane.Schedule
	for i, key := range keys {
		s := a.schedules.of[key]
		orders := s.desk.Next(sched.News{Members: members[i], Taken: done[i].Taken, Now: now, Every: s.pace.every, Lag: s.pace.lag})
		s.at = now
		s.unknown, s.taken = orders.Unknown, done[i].Taken
		if !s.fresh && !orders.Changed && len(orders.Loads) == 0 {
			continue
		}
		out := dataplane.Schedule{Endpoint: key, Kind: s.kind, Sequence: orders.Sequence}
		for _, w := range orders.Loads {
			out.Loads = append(out.Loads, dataplane.MemberLoad{Member: w.ID, Word: w.Word})
		}
		next, s.fresh = append(next, out), false
	}
	if len(next) > 0 {
		a.tellSchedules(a.o.Tables.SetSchedules(next))
	}
}

// tellSchedules logs an error of setting sequences, once for each error text.
func (a *Agent) tellSchedules(err error) {
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	if fault != "" && fault != a.schedules.fault {
		a.o.Log.Error("schedulers keep former sequences", "error", err)
	}
	a.schedules.fault = fault
}

// scheduleMembers returns the members of endpoints that may receive new flows, with their loads and
// the counts in the tables. It sets the pace of the endpoints.
func (a *Agent) scheduleMembers(keys []lb.EndpointKey, done []dataplane.Scheduled, now time.Time) [][]sched.Member {
	out := make([][]sched.Member, len(keys))
	a.mu.Lock()
	for i, key := range keys {
		g := a.roster.groups[key]
		if g == nil {
			continue
		}
		out[i] = make([]sched.Member, 0, len(g.members))
		for _, m := range g.members {
			if !g.takes(m) {
				continue
			}
			out[i] = append(out[i], sched.Member{ID: m.ID, Weight: m.Weight})
			if int(m.ID) < len(done[i].Loads) {
				out[i][len(out[i])-1].Word = done[i].Loads[m.ID]
			}
		}
	}
	a.mu.Unlock()
	for i, key := range keys {
		s := a.schedules.of[key]
		var told []load.Load
		for j := range out[i] {
			if s.by == "" {
				break
			}
			m := &out[i][j]
			if l, age, known := a.loads.told(load.Key{Endpoint: key, Member: m.ID}, now); known && l.Fresh(age) {
				learn(m, s.by, l)
				told = append(told, l)
			}
		}
		s.pace = paceOf(told)
	}
	return out
}

// learn sets a member's load to the reported one.
func learn(m *sched.Member, by string, l load.Load) {
	if l.Has&load.HasConnections != 0 {
		m.Connections, m.Opened, m.HasConnections = float64(l.Connections), l.Opened, true
	}
	switch {
	case by == lb.ByConnections && m.HasConnections:
		m.Load, m.Known = m.Connections, true
	case by == lb.ByCPU && l.Has&load.HasCPU != 0:
		m.Load, m.Known = float64(l.CPU), true
	case by == lb.ByLoad && l.Has&load.HasGiven != 0:
		m.Load, m.Known = float64(l.Given), true
	}
}

// Shares returns the share of an endpoint's new connections, 0 to 1, that each member receives now,
// by id. It follows the last orders of the scheduler, or the weights if the ring decides. The map
// is empty for an endpoint that is in no plan; all shares are 0 if no member takes connections.
func (a *Agent) Shares(e lb.EndpointKey) map[uint16]float64 {
	out := map[uint16]float64{}
	weight := 0.0
	a.mu.Lock()
	if g := a.roster.groups[e]; g != nil {
		for _, m := range g.members {
			if out[m.ID] = 0; g.takes(m) {
				out[m.ID] = float64(m.Weight)
				weight += float64(m.Weight)
			}
		}
	}
	a.mu.Unlock()
	a.schedules.mu.Lock()
	defer a.schedules.mu.Unlock()
	var parts map[uint16]float64
	if s := a.schedules.of[e]; s != nil {
		parts = s.desk.Parts()
	}
	for id := range out {
		if len(parts) > 0 {
			out[id] = parts[id]
		} else if weight > 0 {
			out[id] /= weight
		}
	}
	return out
}

// SchedulerStats is the state of an endpoint's scheduler.
type SchedulerStats struct {
	Endpoint  lb.EndpointKey
	Scheduler string
	// Unknown is how many members that take new flows have no valid load.
	Unknown int
	// Taken is how often packets took a member from its sequences since the program was loaded,
	// modulo 2^32; 0 for schedulers that draw at random.
	Taken uint32
	// Muxes is the estimated number of muxes that assign as many connections as this one; 1 when
	// hosts do not report.
	Muxes float64
}

// Schedulers returns the stats of all endpoints with a scheduler, sorted.
func (a *Agent) Schedulers() []SchedulerStats {
	a.schedules.mu.Lock()
	defer a.schedules.mu.Unlock()
	out := make([]SchedulerStats, 0, len(a.schedules.of))
	for key, s := range a.schedules.of {
		out = append(out, SchedulerStats{key, s.desk.Scheduler, s.unknown, s.taken, s.desk.Muxes()})
	}
	slices.SortFunc(out, func(x, y SchedulerStats) int { return plan.CompareKeys(x.Endpoint, y.Endpoint) })
	return out
}

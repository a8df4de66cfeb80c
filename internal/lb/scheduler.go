package lb

import (
	"slices"

	"github.com/goccy/go-yaml/ast"
)

// Schedulers select the member of a new flow. Maglev uses the ring and needs no state. The
// selection of the others cannot be reproduced by another mux.
const (
	SchedulerMaglev             = "maglev"
	SchedulerRandom             = "random"
	SchedulerRoundRobin         = "round-robin"
	SchedulerWeightedRoundRobin = "weighted-round-robin"
	SchedulerAdaptive           = "adaptive"
	SchedulerLeastConnections   = "least-connections"
	SchedulerP2C                = "p2c"
)

// Schedule configures a scheduler.
type Schedule struct {
	// By is ByConnections, ByCPU or ByLoad; empty for schedulers without load.
	By string
}

// The load of members to compare: their established connections, the processors of their hosts, or
// the reports of the application (Load).
const (
	ByConnections = "connections"
	ByCPU         = "cpu"
	ByLoad        = "load"
)

var (
	schedulers = []string{
		SchedulerMaglev, SchedulerRandom, SchedulerRoundRobin, SchedulerWeightedRoundRobin, SchedulerAdaptive, SchedulerLeastConnections, SchedulerP2C,
	}
	// loaded are the schedulers that use loads.
	loaded = []string{SchedulerAdaptive, SchedulerLeastConnections, SchedulerP2C}
	loads  = []string{ByConnections, ByCPU, ByLoad}
)

// Loaded reports whether the endpoint's scheduler uses loads of members.
func (e *Endpoint) Loaded() bool { return slices.Contains(loaded, e.Scheduler) }

func (d *decoder) schedule(path string, n ast.Node) Schedule {
	var s Schedule
	d.mapping(path, n, field{"by", func(p string, n ast.Node) { s.By = d.given(p, n, anyOf(loads...)) }})
	return s
}

// scheduling checks the selection of members for new flows.
func (f *faults) scheduling(path string, e *Endpoint) {
	at := path + ".scheduler"
	f.choice(at, e.Scheduler, unbuiltSchedulers, builtSchedulers...)
	switch {
	case f.has(at):
	case e.Scheduler == SchedulerMaglev:
	case e.OnePacket:
		f.add(at, e.Scheduler, "must be maglev with onePacket, which remembers no choice")
	case e.Affinity == AffinityHash:
		f.add(at, e.Scheduler, "must be maglev with affinity hash, which remembers no choice: "+e.Scheduler+" needs affinity flow or cookie")
	case e.Source != nil:
		f.add(at, e.Scheduler, NotSupported+" with source, must be maglev")
	}
	at = path + ".schedule.by"
	switch {
	case e.Loaded():
		f.choice(at, e.Schedule.By, nil, loads...)
	case e.Schedule != (Schedule{}):
		f.add(path+".schedule", e.Schedule.By, "must be left out with scheduler "+e.Scheduler+": only "+words(loaded...)+" look at loads")
	}
}

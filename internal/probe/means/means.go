// Package means combines the probing engine with all probers.
package means

import (
	"math/rand/v2"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/loop"
	"github.com/shuntlb/shunt/internal/probe/worker"
)

// Options are the settings of New.
type Options struct {
	Clock clock.Clock
	// Report receives the results; see probe.Options.
	Report func([]probe.Result)
	// Packets makes the packet prober; nil: sockets do all probes.
	Packets func(answered func([]probe.Answer)) (probe.Asker, error)
	// Programs are the programs of external checks. Without a directory there are none.
	Programs Programs
}

// Programs is the operator's setting for external checks.
type Programs struct {
	// Directory is absolute; programs are in it or below. With one, main must begin with
	// worker.Child.
	Directory string
	User      worker.User
}

// New returns an engine without targets. Packets are preferred where a check leaves the choice.
// They prove as much as a socket that connects, and sockets repeat the probes that they cannot
// decide.
func New(o Options) (*probe.Engine, error) {
	var all []probe.Means
	if o.Packets != nil {
		all = append(all, probe.Means{Name: "packet", Packets: true, New: o.Packets})
	}
	all = append(all, probe.Means{Name: "loop", New: func(answered func([]probe.Answer)) (probe.Asker, error) {
		return loop.New(loop.Options{}, answered)
	}}, probe.Means{Name: "worker", New: func(answered func([]probe.Answer)) (probe.Asker, error) {
		a, err := worker.New(worker.Options{Clock: o.Clock, Report: answered, Programs: o.Programs.Directory, User: o.Programs.User})
		if err != nil {
			return nil, err
		}
		return a, nil
	}})
	return probe.New(probe.Options{Clock: o.Clock, Random: rand.Float64, Report: o.Report, Means: all})
}

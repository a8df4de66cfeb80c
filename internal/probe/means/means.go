// Package means puts the probing engine together with every way to ask that there is.
package means

import (
	"math/rand/v2"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/loop"
)

// Options are what New needs.
type Options struct {
	Clock clock.Clock
	// Report gets the results; see probe.Options.
	Report func([]probe.Result)
	// Packets asks by packets; nil: sockets do it all.
	Packets func(answered func([]probe.Answer)) (probe.Asker, error)
}

// New makes an engine without targets. Packets are preferred where a check leaves the choice: they prove as much as a socket that
// connects, and what they are not sure of, sockets ask again.
func New(o Options) (*probe.Engine, error) {
	var all []probe.Means
	if o.Packets != nil {
		all = append(all, probe.Means{Name: "packet", Packets: true, New: o.Packets})
	}
	all = append(all, probe.Means{Name: "loop", New: func(answered func([]probe.Answer)) (probe.Asker, error) {
		return loop.New(loop.Options{}, answered)
	}})
	return probe.New(probe.Options{Clock: o.Clock, Random: rand.Float64, Report: o.Report, Means: all})
}

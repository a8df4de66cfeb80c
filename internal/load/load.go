// Package load measures and reports the load of servers: measurements of their hosts, loads that
// applications report, and the changes that are worth reporting.
package load

import (
	"cmp"
	"math"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Timing of loads on their way from hosts to muxes.
const (
	// SampleEvery is the default interval at which a host samples its servers; MinSample and
	// MaxSample are the bounds of the interval.
	SampleEvery = 100 * time.Millisecond
	MinSample   = 10 * time.Millisecond
	MaxSample   = 10 * time.Second
	// RefreshEvery is the interval at which a host reports an unchanged load.
	RefreshEvery = 5 * time.Second
	// StaleAfter is how long a load is valid without another report.
	StaleAfter = 3 * RefreshEvery
)

// Part identifies a part of a load that may be known.
type Part uint8

// The parts of a load.
const (
	HasConnections Part = 1 << iota
	HasCPU
	HasGiven
	allParts = HasConnections | HasCPU | HasGiven
)

// Bounds of values.
const (
	// FullCPU is a host without idle processors.
	FullCPU = 1000
	// MaxGiven is the largest load that an application may give.
	MaxGiven = 1e9
)

// Load is the load of a member. Unknown parts are zero.
type Load struct {
	// Connections are its established flows of clients.
	Connections uint32
	// Opened is the number of flows that began since some time, modulo 2^32, so that the difference
	// of two loads of a member is meaningful. It is known if Connections is.
	Opened uint32
	// CPU is the busy share of its host's processors, in thousandths.
	CPU uint16
	// Given is the load that the application reports, in its own unit, from 0 to MaxGiven.
	Given float32
	// Has is the set of known parts.
	Has Part
	// Every is the interval at which its host samples it, from MinSample to MaxSample; 0 for
	// SampleEvery.
	Every time.Duration
}

// Interval returns the interval at which its host samples a member.
func (l Load) Interval() time.Duration { return cmp.Or(l.Every, SampleEvery) }

// Fresh reports whether schedulers may use a load of this age: its host should have reported it
// again before it is no longer fresh.
func (l Load) Fresh(age time.Duration) bool { return age < max(RefreshEvery, l.Every)*3/2 }

// Valid reports whether every value is in its bounds.
func (l Load) Valid() bool {
	return l.Has&^allParts == 0 && (l.Every == 0 || l.Every >= MinSample && l.Every <= MaxSample) && l.CPU <= FullCPU && l.Given >= 0 && l.Given <= MaxGiven
}

// Differs reports whether the load differs enough from another one to be reported: other parts are
// known, its host has another interval, or a value changed by more than a sixteenth of the square
// root of the connections, which is a sixteenth of their random variation; by two hundredths of the
// processors; by a 64th of the application's load.
func (l Load) Differs(o Load) bool {
	few, many := min(l.Connections, o.Connections), max(l.Connections, o.Connections)
	idle, busy := min(l.CPU, o.CPU), max(l.CPU, o.CPU)
	low, high := min(l.Given, o.Given), max(l.Given, o.Given)
	return l.Has != o.Has || l.Every != o.Every || float64(many-few) > math.Sqrt(float64(many))/16 || busy-idle >= FullCPU/50 || high-low > high/64
}

// Key identifies a member of an endpoint.
type Key struct {
	Endpoint lb.EndpointKey
	Member   uint16
}

// Member is a member's load.
type Member struct {
	Key
	Load
}

// Reader returns loads to schedulers.
type Reader interface {
	// Of returns the newest load of a member; false: none is known and valid at this time.
	Of(k Key, now time.Time) (Load, bool)
}

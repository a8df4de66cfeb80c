// Package load says how busy servers are: what their hosts measure, what they say themselves, and what of it is worth telling.
package load

import (
	"cmp"
	"math"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Times of loads on their way from hosts to muxes.
const (
	// SampleEvery is how often a host looks at its servers where nothing else is said, MinSample and MaxSample bound what may be said.
	SampleEvery = 100 * time.Millisecond
	MinSample   = 10 * time.Millisecond
	MaxSample   = 10 * time.Second
	// RefreshEvery is how often a host tells a load that did not change.
	RefreshEvery = 5 * time.Second
	// StaleAfter is how long a load counts that is not told again.
	StaleAfter = 3 * RefreshEvery
)

// Part is something that may be known of a load.
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

// Load is how busy a member is. What is not known is zero.
type Load struct {
	// Connections are its established flows of clients.
	Connections uint32
	// Opened is how many began since some time, modulo 2^32: two loads of a member have a difference. It is known when Connections is.
	Opened uint32
	// CPU is the share of its host's processors that is busy, in thousandths.
	CPU uint16
	// Given is what the application says, in a unit of its own, from 0 to MaxGiven.
	Given float32
	// Has says what is known.
	Has Part
	// Every is how often its host looks at it, from MinSample to MaxSample; 0 for SampleEvery.
	Every time.Duration
}

// Interval is how often its host looks at a member.
func (l Load) Interval() time.Duration { return cmp.Or(l.Every, SampleEvery) }

// Fresh tells whether a load that was told so long ago may be gone by: its host should have told it again before, but not long before.
func (l Load) Fresh(age time.Duration) bool { return age < max(RefreshEvery, l.Every)*3/2 }

// Valid tells whether every value is one that a load may have.
func (l Load) Valid() bool {
	return l.Has&^allParts == 0 && (l.Every == 0 || l.Every >= MinSample && l.Every <= MaxSample) && l.CPU <= FullCPU && l.Given >= 0 && l.Given <= MaxGiven
}

// Differs tells whether the load is far enough from another one to be worth telling: another part is known, its host looks at another pace, or a value changed by more than a sixteenth of the
// square root of the connections, which is a sixteenth of what chance alone makes of them; by two hundredths of the processors; by a 64th of what the
// application says.
func (l Load) Differs(o Load) bool {
	few, many := min(l.Connections, o.Connections), max(l.Connections, o.Connections)
	idle, busy := min(l.CPU, o.CPU), max(l.CPU, o.CPU)
	low, high := min(l.Given, o.Given), max(l.Given, o.Given)
	return l.Has != o.Has || l.Every != o.Every || float64(many-few) > math.Sqrt(float64(many))/16 || busy-idle >= FullCPU/50 || high-low > high/64
}

// Key names a member of an endpoint.
type Key struct {
	Endpoint lb.EndpointKey
	Member   uint16
}

// Member is a member's load.
type Member struct {
	Key
	Load
}

// Reader is what schedulers ask.
type Reader interface {
	// Of is the newest load of a member; false: none is known, or none that counts at this time.
	Of(k Key, now time.Time) (Load, bool)
}

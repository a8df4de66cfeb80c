package probe

import (
	"errors"
	"time"
)

// Verdict is the outcome of a probe.
type Verdict uint8

// Verdicts of probes.
const (
	// Bad: the server does not serve.
	Bad Verdict = iota
	// Good: the server serves.
	Good
	// Void: this machine could not probe. The result carries no information about the server.
	Void
	// Unsure: this prober cannot decide. Another one has to probe.
	Unsure
)

// ErrCrowded is wrapped by the error of an Asker that supports a target but has no room for it.
var ErrCrowded = errors.New("no room")

// Answer is the outcome of one probe.
type Answer struct {
	// ID is the target's number.
	ID      uint32
	Verdict Verdict
	// Silent, with Bad, is as in Result.
	Silent bool
	// Crowded: the prober has no room for a part of this target, and did not probe it.
	Crowded bool
	// Words is the reason as text: "status 503".
	Words string
	// Took is the time from the start of the probe to the verdict.
	Took time.Duration
}

// Asker is a prober. It probes targets by numbers that its owner chooses: small, dense and reused.
// It delivers answers in batches, from any goroutine, through the func([]Answer) that it was made
// with. The receiver owns the slice until it returns. The owner probes a number again, or gives it
// to another target, only after its answer arrived.
type Asker interface {
	// Add registers a target under a free number. It returns an error, and registers nothing, if
	// this prober cannot probe the target.
	Add(id uint32, t Target) error
	// Remove drops a target. A pending answer is still delivered.
	Remove(id uint32)
	// Ask begins one probe of each target without blocking. Exactly one answer follows for each,
	// soon after the target's timeout at the latest.
	Ask(ids []uint32)
	// Close stops everything. No answer is delivered after it returned.
	Close() error
}

// Counter is an Asker with counters.
type Counter interface {
	// Met returns the counters since the prober was made. It does not block.
	Met() Met
}

// Met holds counters of events in probers that are not results.
type Met struct {
	// Starved counts probes for which this machine had no descriptor, port or memory, or no room
	// among those waiting for silent servers. They waited for others to end, or were void.
	Starved uint64
	// Again counts connections that were tried in addition to one still being established, because
	// its SYN may be lost.
	Again uint64
	// Unproven counts answers and ICMP errors of routers without the secret of their request. They
	// were ignored.
	Unproven uint64
	// Stuck is the number of programs that were killed and have not ended yet. It is a gauge.
	Stuck int
}

// add adds the counters of another prober.
func (m *Met) add(other Met) {
	m.Starved, m.Again, m.Unproven, m.Stuck = m.Starved+other.Starved, m.Again+other.Again, m.Unproven+other.Unproven, m.Stuck+other.Stuck
}

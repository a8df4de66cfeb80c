package probe

import (
	"errors"
	"time"
)

// Verdict is what the answer to a probe means.
type Verdict uint8

// Verdicts of probes.
const (
	// Bad: the server does not serve.
	Bad Verdict = iota
	// Good: it does.
	Good
	// Void: this machine could not ask, which says nothing about the server.
	Void
	// Unsure: this asker cannot tell, another one has to ask.
	Unsure
)

// ErrCrowded is wrapped by what an Asker says to a target that it could ask, but for room of its own.
var ErrCrowded = errors.New("no room")

// Answer is what one probe came to.
type Answer struct {
	// ID is the target's number.
	ID      uint32
	Verdict Verdict
	// Silent, with Bad, is what it is in Result.
	Silent bool
	// Crowded: the asker has no room for what this target needs, and did not ask.
	Crowded bool
	// Words says it to people: "status 503".
	Words string
	// Took is how long it was from the asking to the verdict.
	Took time.Duration
}

// Asker makes probes of the targets that it was given, by numbers that its owner chooses: small, dense, used again. Answers come
// in batches through a func([]Answer) that the asker was made with, from any goroutine; the slice is the receiver's until it
// returns. The owner asks a number again, or gives it to another target, only after its answer came.
type Asker interface {
	// Add makes a target known under a number that is free. An error: this asker cannot ask it, and knows nothing of it.
	Add(id uint32, t Target) error
	// Remove forgets a target. An answer that is under way still comes.
	Remove(id uint32)
	// Ask begins one probe of each target and does not wait. Exactly one answer follows for each, soon after the target's timeout
	// at the latest.
	Ask(ids []uint32)
	// Close ends everything; no answer comes after it returned.
	Close() error
}

// Counter is an Asker that counts what it met.
type Counter interface {
	// Met is what it met since it was made. It waits for nothing.
	Met() Met
}

// Met is what askers met that is no result.
type Met struct {
	// Starved counts probes for which this machine had no descriptor, port or memory left, or no room among those that wait for
	// silent servers: they waited for others to end, or were void.
	Starved uint64
	// Again counts connections that were tried beside one that was not made yet: its SYN may be lost.
	Again uint64
	// Unproven counts answers, and errors of routers by ICMP, that did not show the secret of the request that they were about, and
	// were not believed.
	Unproven uint64
	// Stuck are the programs that were killed and have not ended yet; it goes down again.
	Stuck int
}

// add adds what another asker met.
func (m *Met) add(other Met) {
	m.Starved, m.Again, m.Unproven, m.Stuck = m.Starved+other.Starved, m.Again+other.Again, m.Unproven+other.Unproven, m.Stuck+other.Stuck
}

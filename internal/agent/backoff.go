package agent

import (
	"math/rand/v2"
	"time"
)

// Waiting times between connections. They are short at first, because most interruptions are
// restarts of the manager.
const (
	firstWait = 50 * time.Millisecond
	maxWait   = 5 * time.Second
	// stable is how long a connection must have lived for the next one to be tried fast again.
	stable = 10 * time.Second
)

// backoff returns waiting times that double, with a random half so that nodes do not reconnect in
// step.
type backoff struct{ next time.Duration }

func (b *backoff) wait() time.Duration {
	d := max(b.next, firstWait)
	b.next = min(2*d, maxWait)
	return d/2 + rand.N(d/2)
}

func (b *backoff) reset() { b.next = 0 }

package worker

import (
	"sync"

	"github.com/shuntlb/shunt/internal/probe"
)

// outbox hands answers on, one batch at a time: those that come while one is told are the next.
type outbox struct {
	report func([]probe.Answer)

	mu             sync.Mutex
	telling        bool
	waiting, spare []probe.Answer
}

// put hands an answer on, and those that come meanwhile.
func (o *outbox) put(a probe.Answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, a)
	if o.telling {
		return
	}
	o.telling = true
	for len(o.waiting) > 0 {
		batch := o.waiting
		o.waiting, o.spare = o.spare[:0], nil
		o.mu.Unlock()
		o.report(batch)
		o.mu.Lock()
		clear(batch)
		o.spare = batch
	}
	o.telling = false
}

package worker

import (
	"sync"

	"github.com/shuntlb/shunt/internal/probe"
)

// outbox reports answers in batches, one batch at a time. Answers that arrive during a report form
// the next batch.
type outbox struct {
	report func([]probe.Answer)

	mu             sync.Mutex
	telling        bool
	waiting, spare []probe.Answer
}

// put queues an answer. Unless a report is running, it reports until the queue is empty.
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

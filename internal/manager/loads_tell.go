package manager

import (
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
)

// loadPace is the share of the time between two looks of a host that passes at least between two messages of loads to one listener, so that many hosts come in
// one: 50 ms where hosts look ten times a second, less where some look more often.
const loadPace = 2

// loadTeller tells one listener of loads. It belongs to the goroutine that sends; a nil one has nothing to tell.
type loadTeller struct {
	loads *hostLoads
	clock clock.Clock
	// leave says which loads the listener does not get, by where they came from.
	leave func(origin string) bool
	// number is that of the last load that was told.
	number uint64
	last   time.Time
	// One of these is there at a time: news is closed when something comes, due fires when it may be told; ready: it may.
	news  <-chan struct{}
	due   <-chan time.Time
	ready bool
}

// teller makes one for a listener that knows nothing.
func (l *hostLoads) teller(c clock.Clock, leave func(origin string) bool) *loadTeller {
	return &loadTeller{loads: l, clock: c, leave: leave, ready: true}
}

// fresh makes the listener hear only what comes from now on.
func (t *loadTeller) fresh() *loadTeller {
	t.loads.mu.Lock()
	defer t.loads.mu.Unlock()
	_, t.number = t.loads.table.Since(^uint64(0), t.clock.Now(), nil)
	return t
}

// stirs is closed when something came: come is to be called then.
func (t *loadTeller) stirs() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.news
}

// dues fires when something may be told: rise is to be called then.
func (t *loadTeller) dues() <-chan time.Time {
	if t == nil {
		return nil
	}
	return t.due
}

// come notes that something came.
func (t *loadTeller) come() {
	now := t.clock.Now()
	t.news, t.due = nil, t.clock.After(t.loads.every(now)/loadPace-now.Sub(t.last))
}

// rise notes that it may be told.
func (t *loadTeller) rise() { t.due, t.ready = nil, true }

// take is what is to be told now; nil for nothing.
func (t *loadTeller) take() *apiv1.LoadReport {
	if t == nil || !t.ready {
		return nil
	}
	now := t.clock.Now()
	t.ready, t.last, t.news = false, now, t.loads.next()
	t.loads.mu.Lock()
	members, number := t.loads.table.Since(t.number, now, t.leave)
	t.loads.mu.Unlock()
	t.number = number
	return convert.ToLoadReport(members)
}

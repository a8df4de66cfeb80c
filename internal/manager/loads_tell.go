package manager

import (
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
)

// loadPace divides the report interval of the fastest host to yield the minimum time between two
// load messages to one listener, so that many hosts fit in one: 50 ms where hosts report ten times
// a second, less where some report more often.
const loadPace = 2

// loadTeller sends loads to one listener. It belongs to the goroutine that sends. A nil one never
// sends.
type loadTeller struct {
	loads *hostLoads
	clock clock.Clock
	// leave reports whether the listener must not receive loads of an origin.
	leave func(origin string) bool
	// number is that of the last load that was sent.
	number uint64
	last   time.Time
	// One of these is set at a time: news is closed when loads arrive, due fires when they may be
	// sent, ready means that they may be sent now.
	news  <-chan struct{}
	due   <-chan time.Time
	ready bool
}

// teller returns a loadTeller for a listener that has no loads.
func (l *hostLoads) teller(c clock.Clock, leave func(origin string) bool) *loadTeller {
	return &loadTeller{loads: l, clock: c, leave: leave, ready: true}
}

// fresh skips the present loads: the listener receives only later ones.
func (t *loadTeller) fresh() *loadTeller {
	t.loads.mu.Lock()
	defer t.loads.mu.Unlock()
	_, t.number = t.loads.table.Since(^uint64(0), t.clock.Now(), nil)
	return t
}

// stirs returns a channel that is closed when loads arrived. The caller must then call come.
func (t *loadTeller) stirs() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.news
}

// dues returns a channel that fires when loads may be sent. The caller must then call rise.
func (t *loadTeller) dues() <-chan time.Time {
	if t == nil {
		return nil
	}
	return t.due
}

// come schedules the next message after loads arrived.
func (t *loadTeller) come() {
	now := t.clock.Now()
	t.news, t.due = nil, t.clock.After(t.loads.every(now)/loadPace-now.Sub(t.last))
}

// rise marks that loads may be sent.
func (t *loadTeller) rise() { t.due, t.ready = nil, true }

// take returns the loads to send now, or nil.
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

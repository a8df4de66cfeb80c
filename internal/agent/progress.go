package agent

import (
	"cmp"
	"sync"
	"time"
)

// StaleAfter is the age from which on a plan counts as stale, because managers restart within
// seconds.
const StaleAfter = 30 * time.Second

// Progress exposes the state of a running agent relative to its manager: Options.Progress.
type Progress struct {
	mu   sync.Mutex
	read func() State
}

// State is an agent's progress at one moment.
type State struct {
	// Applied is the revision that the data plane has, Wanted that of the newest plan received.
	Applied, Wanted int64
	Epoch           int64
	// Connected: the stream to the manager is up and received something.
	Connected bool
	// Age is the time since the plan was last known to be the newest; 0 while it is.
	Age time.Duration
	// Fault is why the newest plan is not applied, or why no manager accepts the node.
	Fault string
}

// State returns the progress; zero before Run, and for a nil Progress.
func (p *Progress) State() State {
	if p == nil {
		return State{}
	}
	p.mu.Lock()
	read := p.read
	p.mu.Unlock()
	if read == nil {
		return State{}
	}
	return read()
}

// follow attaches the progress to a loop.
func (p *Progress) follow(l *loop) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = l.state
}

func (l *loop) state() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteCurrentLocked()
	return State{
		Applied: l.applied.revision, Wanted: l.wanted.revision, Epoch: l.wanted.epoch, Connected: l.connected,
		Age: l.o.Clock.Now().Sub(l.current), Fault: cmp.Or(l.lockedOut, l.fault),
	}
}

// noteCurrentLocked updates the last time at which the plan was the newest. It is called before
// that may end.
func (l *loop) noteCurrentLocked() {
	if l.connected && l.fault == "" && l.applied == l.wanted || l.current.IsZero() {
		l.current = l.o.Clock.Now()
	}
}

// setConnected records that the stream came up or ended.
func (l *loop) setConnected(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteCurrentLocked()
	l.connected = up
}

// Package loop probes by sockets: TCP, plain HTTP/1.1, UDP, DNS and ICMP echo. It uses one epoll
// loop per core, without a goroutine or a descriptor per target. Connections end by RST, so that no
// port stays in TIME_WAIT, and their sockets are reused.
package loop

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unique"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// DefaultInFlight bounds the concurrent probes of a loop that are answered soon.
const DefaultInFlight = 512

// Options are the settings of an Asker. The zero value is usable.
type Options struct {
	// Loops is the number of loops; 0: one per core that Go uses.
	Loops int
	// InFlight bounds the concurrent probes of a loop; 0: DefaultInFlight. The others wait, and
	// their timeouts do not run yet. Probes without an answer for 100 ms do not count, while there
	// is room among Patient.
	InFlight int
	// Patient bounds the connections of a loop for probes that wait longer, or whose targets' last
	// probes timed out; 0: 16,384, or fewer so that those of all loops take at most a quarter of
	// the process's descriptors.
	Patient int
	// Enter, if not nil, runs on the thread of each loop before anything else. It selects the
	// network namespace.
	Enter func() error
}

// Asker implements probe.Asker.
type Asker struct {
	loops []*loop
	wait  sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	questions map[unique.Handle[lb.Check]]*question
}

var (
	_ probe.Asker   = (*Asker)(nil)
	_ probe.Counter = (*Asker)(nil)
)

// Stats holds the counters of an Asker.
type Stats struct {
	probe.Met
	// Sockets is the number of open sockets.
	Sockets int
}

// New starts the loops. Each of them passes its answers to answered.
func New(o Options, answered func([]probe.Answer)) (*Asker, error) {
	if o.Loops == 0 {
		o.Loops = runtime.GOMAXPROCS(0)
	}
	if o.InFlight == 0 {
		o.InFlight = DefaultInFlight
	}
	a := &Asker{questions: map[unique.Handle[lb.Check]]*question{}}
	for range o.Loops {
		l, ready := newLoop(o, uint32(o.Loops), answered), make(chan error, 1)
		a.wait.Go(func() { l.run(o.Enter, ready) })
		if err := <-ready; err != nil {
			_ = unix.Close(l.wake)
			return nil, errors.Join(fmt.Errorf("start a loop: %w", err), a.Close())
		}
		a.loops = append(a.loops, l)
	}
	return a, nil
}

// Add implements probe.Asker.
func (a *Asker) Add(id uint32, t probe.Target) error {
	if t.Tunnel != (unique.Handle[probe.Tunnel]{}) {
		return fmt.Errorf("through: %q: needs the packet engine", lb.ThroughTunnel)
	}
	a.mu.Lock()
	q := a.questions[t.Check]
	if q == nil {
		var err error
		c := t.Check.Value()
		if q, err = newQuestion(&c); err != nil {
			a.mu.Unlock()
			return err
		}
		a.questions[t.Check] = q
	}
	q.targets++
	a.mu.Unlock()
	l := a.of(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	at := int(id / l.stride)
	if at >= len(l.targets) {
		l.targets = append(l.targets, make([]target, at+1-len(l.targets))...)
	}
	l.targets[at] = newTarget(t.Address, q)
	l.late.set(uint32(at), false)
	return nil
}

// Remove implements probe.Asker.
func (a *Asker) Remove(id uint32) {
	l := a.of(id)
	l.mu.Lock()
	q := l.targets[id/l.stride].question
	l.targets[id/l.stride] = target{}
	l.mu.Unlock()
	if q == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.targets--; q.targets == 0 {
		delete(a.questions, q.check)
	}
}

// Ask implements probe.Asker.
func (a *Asker) Ask(ids []uint32) {
	for i, l := range a.loops {
		l.mu.Lock()
		for _, id := range ids {
			if int(id)%len(a.loops) == i {
				l.inbox = append(l.inbox, id)
			}
		}
		some := len(l.inbox) > 0
		l.mu.Unlock()
		if some && l.sleeps.Load() {
			l.poke()
		}
	}
}

// Stats returns the sum of the loops' counters.
func (a *Asker) Stats() (s Stats) {
	for _, l := range a.loops {
		s.Starved += l.starved.Load()
		s.Again += l.again.Load()
		s.Unproven += l.unproven.Load()
		s.Sockets += int(l.sockets.Load())
	}
	return s
}

// Met implements probe.Counter.
func (a *Asker) Met() probe.Met { return a.Stats().Met }

// Close implements probe.Asker.
func (a *Asker) Close() error {
	a.mu.Lock()
	closed := a.closed
	a.closed = true
	a.mu.Unlock()
	for _, l := range a.loops {
		if !closed {
			l.closing.Store(true)
			l.poke()
		}
	}
	a.wait.Wait()
	for _, l := range a.loops {
		if !closed {
			_ = unix.Close(l.wake)
		}
	}
	return nil
}

// of returns the loop of a number.
func (a *Asker) of(id uint32) *loop { return a.loops[int(id)%len(a.loops)] }

// counter is a counter that another thread reads.
type counter = atomic.Uint64

package probe

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
)

// PacketsRest is how long packets are not tried on a target that they could not decide, or had no room for.
const PacketsRest = 10 * time.Minute

const (
	// tick is the grain of the schedule: probes begin up to one late.
	tick = 4 * time.Millisecond
	// maxPerTick bounds the probes begun in one tick. It spreads those of a machine that was stopped, or starts; means that can
	// stand less pace themselves.
	maxPerTick = 4096
	// maxFirst is how many answers of one means may be missing for it to get targets that were never asked: planned probes do not
	// queue behind those of a start.
	maxFirst = 16 << 10
	// collect is how long results wait for others to be reported with.
	collect = 2 * time.Millisecond
	// changeStep is how many targets begin or end before others get a turn.
	changeStep = 1024
)

// Options are what an Engine needs from outside.
type Options struct {
	// Clock should be a monotonic one, as the system's is: what sets the time of day does not move the schedule.
	Clock clock.Clock
	// Random is uniform in [0, 1) and safe for concurrent use.
	Random func() float64
	// Report gets every result, once, in batches, from one goroutine. The slice is the receiver's until it returns.
	Report func([]Result)
	// Means are the ways to ask, the preferred first. A target is asked by the first that takes it.
	Means []Means
}

// Engine probes the wanted targets until it is closed. It is safe for concurrent use.
//
// A target is asked at once when it is new, a second time somewhere within its interval, then once an interval, by a plan that
// neither load nor slow answers shift; one whose answer is missing is not asked. New targets are asked as fast as means can, but
// after those that are due.
type Engine struct {
	options Options
	askers  []Asker
	begin   time.Time
	wait    sync.WaitGroup
	closing chan struct{}
	// poke wakes the schedule, some the reports, and quiet those when no answer is missing.
	poke, some, quiet chan struct{}

	// changing is held while targets are set or changed, asking while askers are called, which is not while mu is held. Lock order:
	// changing, asking, mu.
	changing, asking sync.Mutex
	// batches are what is handed to each asker. Who asks uses it.
	batches [][]uint32
	moves   []uint32
	// ticked is the last tick in which probes began, begun how many.
	ticked time.Duration
	begun  int

	mu     sync.Mutex
	closed bool
	table  *table
	// wakes is when the schedule looks again; 0: when it is poked.
	wakes time.Duration
	// odd are those that another means has to ask.
	odd     []uint32
	pending []Result
	stats   Stats
	// changedAt is when targets were last set or changed.
	changedAt time.Duration
}

// New makes an engine without targets.
func New(o Options) (*Engine, error) {
	e := &Engine{
		options: o, begin: o.Clock.Now(), table: newTable(), closing: make(chan struct{}),
		poke: make(chan struct{}, 1), some: make(chan struct{}, 1), quiet: make(chan struct{}, 1),
		batches: make([][]uint32, len(o.Means)),
	}
	e.stats.Kinds = newKinds()
	e.table.salt = math.Float64bits(o.Random())
	e.stats.Means = make([]MeansStats, len(o.Means))
	for i, m := range o.Means {
		e.stats.Means[i].Name = m.Name
		a, err := m.New(func(answers []Answer) { e.answered(i, answers) })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make the %s asker: %w", m.Name, err), e.closeAskers())
		}
		e.askers = append(e.askers, a)
	}
	e.wait.Go(e.schedule)
	e.wait.Go(e.report)
	return e, nil
}

// now is the time since the engine was made.
func (e *Engine) now() time.Duration { return e.options.Clock.Now().Sub(e.begin) }

// Set makes the probed targets equal to the wanted ones. New ones are asked at once, gone ones no longer reported soon after.
// A target that no means takes is none's fault here: it has void results that say why, one now and one after each later change,
// and is offered to the means again every offerAgain, and when it is set again. An error: the engine is closed, or a target has no check.
func (e *Engine) Set(want []Target) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	wanted := make(map[Target]struct{}, len(want))
	for _, t := range want {
		wanted[t] = struct{}{}
	}
	var gone []Target
	stay := 0
	e.mu.Lock()
	for i := range e.table.rules {
		r := &e.table.rules[i]
		if r.gone || r.pace == 0 {
			continue
		}
		target := e.table.target(uint32(i))
		if _, stays := wanted[target]; !stays {
			gone = append(gone, target)
			continue
		}
		stay++
	}
	e.mu.Unlock()
	return e.change(want, len(wanted)-stay, gone, false)
}

// Change probes more targets, and others no more, as Set does. What it costs is by these alone.
func (e *Engine) Change(start, stop []Target) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.change(start, len(start), stop, false)
}

// Resume probes more targets, of which it is known from before how they are, as after a restart of the agent: their first probes
// are spread over their intervals. A Set that follows leaves them so.
func (e *Engine) Resume(known []Target) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.change(known, len(known), nil, true)
}

// change stops and starts targets, `fresh` of which are not probed yet, or fewer, in steps; changing is held.
func (e *Engine) change(start []Target, fresh int, stop []Target, known bool) error {
	e.mu.Lock()
	e.changedAt = e.now()
	e.table.expect(len(e.table.rules) - len(e.table.unused) + max(fresh-len(stop), 0))
	e.mu.Unlock()
	for len(stop) > 0 {
		n := min(changeStep, len(stop))
		e.stop(stop[:n])
		stop = stop[n:]
	}
	for len(start) > 0 {
		n := min(changeStep, len(start))
		if err := e.start(start[:n], known); err != nil {
			return err
		}
		start = start[n:]
	}
	return nil
}

// stop ends the probes of targets.
func (e *Engine) stop(targets []Target) {
	e.asking.Lock()
	defer e.asking.Unlock()
	gone, means := e.moves[:0], make([]int8, 0, len(targets))
	e.mu.Lock()
	for _, t := range targets {
		id, probed := e.table.find(t)
		if !probed {
			continue
		}
		by := e.table.rules[id].means
		if gone, means = append(gone, id), append(means, by); by != nobody {
			e.countLocked(id, int(by), -1)
		} else {
			e.stats.Unaskable--
		}
		// Before the next is looked up, which may be the same one.
		e.table.leave(id)
	}
	e.mu.Unlock()
	for i, id := range gone {
		if means[i] != nobody {
			e.askers[means[i]].Remove(id)
		}
	}
	e.moves = gone[:0]
}

// start begins to probe those of the targets that are not probed.
func (e *Engine) start(targets []Target, known bool) error {
	e.asking.Lock()
	defer e.asking.Unlock()
	now := e.now()
	for _, t := range targets {
		e.mu.Lock()
		id, probed := e.table.find(t)
		if e.closed {
			e.mu.Unlock()
			return errors.New("set probes: the engine is closed")
		}
		if probed && e.table.rules[id].means != nobody {
			e.mu.Unlock()
			continue
		}
		if t.Check == (unique.Handle[lb.Check]{}) {
			e.mu.Unlock()
			return t.validate()
		}
		if !probed {
			id = e.table.add(t)
			e.table.rules[id].means = nobody
			e.stats.Unaskable++
		}
		e.mu.Unlock()
		e.offer(id, t, now, known, true)
	}
	notify.Send(e.poke)
	return nil
}

// find gives a target to the first means that takes it; full is what one before it said that has no room. A target with a tunnel that no means takes
// is given to sockets without it: a backend that is checked on its own address is better than one of which nothing is known. asking is held.
func (e *Engine) find(id uint32, t Target, packetsFailed bool) (means int, full, why error) {
	if err := t.validate(); err != nil {
		return 0, nil, err
	}
	packets := false // why is of packets, which ask directly only what sockets ask too
	for _, i := range candidates(e.options.Means, t.Check.Value().Engine, packetsFailed) {
		err := e.askers[i].Add(id, t)
		if err == nil {
			return i, full, nil
		}
		if errors.Is(err, ErrCrowded) {
			full = err
		}
		// The one that could, but for this, knows best.
		if why == nil || packets || errors.Is(why, errors.ErrUnsupported) {
			why, packets = err, e.options.Means[i].Packets && !t.tunnelled()
		}
	}
	if t.tunnelled() {
		for i, m := range e.options.Means {
			if !m.Packets && e.askers[i].Add(id, t.Direct()) == nil {
				return i, full, nil
			}
		}
	}
	if why == nil {
		why = fmt.Errorf("kind: %q: %w", t.Check.Value().Kind, errors.ErrUnsupported)
	}
	return 0, full, why
}

// countLocked counts a rule that a means asks from now on (n 1), or no more (-1). mu is held.
func (e *Engine) countLocked(id uint32, means, n int) {
	e.stats.Means[means].Targets += n
	if !e.options.Means[means].Packets && e.table.rules[id].odd && e.table.odd[id].tunnelled() {
		e.stats.Direct += n
	}
}

// Stats is what the engine has done.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Crowded = e.table.crowd.n
	s.Targets, s.Queued = e.table.byTarget.Len()-s.Unaskable, e.table.due.len()+e.table.first.len()
	s.Means, s.Kinds = slices.Clone(s.Means), slices.Clone(s.Kinds)
	s.sumKinds()
	for _, m := range s.Means {
		s.Out += m.Out
	}
	for _, a := range e.askers {
		if a, counts := a.(Counter); counts {
			s.Met.add(a.Met())
		}
	}
	return s
}

// Close ends all probes and waits for them. Nothing is reported after it returned.
func (e *Engine) Close() {
	e.mu.Lock()
	closed := e.closed
	e.closed = true
	e.mu.Unlock()
	if !closed {
		close(e.closing)
	}
	e.wait.Wait()
	if !closed {
		e.asking.Lock()
		defer e.asking.Unlock()
		_ = e.closeAskers()
	}
}

func (e *Engine) closeAskers() error {
	var errs []error
	for _, a := range e.askers {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}

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

// PacketsRest is how long packet probes are suspended for a target that they could not decide or
// had no room for.
const PacketsRest = 10 * time.Minute

const (
	// tick is the resolution of the schedule: a probe begins up to one tick late.
	tick = 4 * time.Millisecond
	// maxPerTick bounds the probes that begin in one tick. It spreads the burst after a start, or
	// after the machine was suspended. A prober with less capacity paces itself.
	maxPerTick = 4096
	// maxFirst bounds the missing answers of one prober while it still gets targets that were never
	// probed, so that planned probes do not queue behind those of a start.
	maxFirst = 16 << 10
	// collect is how long a result waits for others, to be reported in one batch.
	collect = 2 * time.Millisecond
	// changeStep is how many targets start or stop before other work gets a turn.
	changeStep = 1024
)

// Options are the settings and callbacks of an Engine.
type Options struct {
	// Clock should be monotonic, as the system's is, because then setting the time of day does not
	// move the schedule.
	Clock clock.Clock
	// Random is uniform in [0, 1) and safe for concurrent use.
	Random func() float64
	// Report receives every result once, in batches, from one goroutine. It owns the slice until it
	// returns.
	Report func([]Result)
	// Means are the probers in order of preference. The first that accepts a target probes it.
	Means []Means
}

// Engine probes the wanted targets until it is closed. It is safe for concurrent use.
//
// A new target is probed immediately, a second time somewhere within its interval, then once an
// interval. Neither load nor slow answers shift that plan. A target whose answer is missing is not
// probed again. New targets are probed as fast as the probers can, but after those that are due.
type Engine struct {
	options Options
	askers  []Asker
	begin   time.Time
	wait    sync.WaitGroup
	closing chan struct{}
	// poke wakes the schedule, some wakes report, and quiet wakes report when no answer is missing.
	poke, some, quiet chan struct{}

	// changing is held while targets are set or changed, asking while Add, Remove, Ask and Close of
	// probers are called, never with mu held. Lock order: changing, asking, mu.
	changing, asking sync.Mutex
	// batches holds the numbers handed to each prober. Guarded by asking.
	batches [][]uint32
	moves   []uint32
	// ticked is the last tick in which probes began; begun is how many began in it.
	ticked time.Duration
	begun  int

	mu     sync.Mutex
	closed bool
	table  *table
	// wakes is when the schedule wakes next; 0: when it is poked.
	wakes time.Duration
	// odd holds the targets that another prober has to probe.
	odd     []uint32
	pending []Result
	stats   Stats
	// changedAt is when targets were last set or changed.
	changedAt time.Duration
}

// New returns an engine without targets.
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

// now returns the time since the engine was made.
func (e *Engine) now() time.Duration { return e.options.Clock.Now().Sub(e.begin) }

// Set makes the probed targets equal to want. New targets are probed immediately. Removed ones are
// no longer reported soon after.
//
// A target that no prober accepts is no error. It gets void results with the reason, one now and
// one after each later change. It is offered to the probers again every offerAgain, and when it is
// set again. Set returns an error if the engine is closed or a target has no check.
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

// Change starts and stops the given targets as Set does. Its cost depends on these targets only.
func (e *Engine) Change(start, stop []Target) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.change(start, len(start), stop, false)
}

// Resume starts targets whose health is known from before, as after a restart of the agent. Their
// first probes are spread over their intervals. A later Set does not change that.
func (e *Engine) Resume(known []Target) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.change(known, len(known), nil, true)
}

// change stops and starts targets in steps. At most fresh of those to start are not probed yet.
// changing is held.
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
		// Leave before the next lookup, because the next target may be the same one.
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

// start begins to probe those targets that are not probed yet.
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

// find returns the first prober that accepts a target. full is the error of an earlier one that had
// no room. A target with a tunnel that no prober accepts is given to sockets without the tunnel,
// because a check of the backend's own address is better than none. asking is held.
func (e *Engine) find(id uint32, t Target, packetsFailed bool) (means int, full, why error) {
	if err := t.validate(); err != nil {
		return 0, nil, err
	}
	// why is from packets, which probe directly only the targets that sockets can probe too
	packets := false
	for _, i := range candidates(e.options.Means, t.Check.Value().Engine, packetsFailed) {
		err := e.askers[i].Add(id, t)
		if err == nil {
			return i, full, nil
		}
		if errors.Is(err, ErrCrowded) {
			full = err
		}
		// Prefer the error of a prober that supports the target otherwise, because it is the most
		// specific.
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

// countLocked adds n to the targets of a prober: 1 when it begins to probe the target, -1 when it
// stops. mu is held.
func (e *Engine) countLocked(id uint32, means, n int) {
	e.stats.Means[means].Targets += n
	if !e.options.Means[means].Packets && e.table.rules[id].odd && e.table.odd[id].tunnelled() {
		e.stats.Direct += n
	}
}

// Stats returns a snapshot of the engine's counters.
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

// Close stops all probes and waits for them. Nothing is reported after it returned.
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

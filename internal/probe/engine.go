package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/health"
)

// maxParallel bounds the probes in flight, and so the file descriptors: one each.
const maxParallel = 2048

// Options are what an Engine needs from outside.
type Options struct {
	Clock clock.Clock
	// Random is uniform in [0, 1) and safe for concurrent use.
	Random func() float64
	// Report gets every result, once; it is called from many goroutines. The slice is the receiver's until it returns.
	Report func([]Result)
}

// Engine probes the wanted targets until it is closed. It is safe for concurrent use.
type Engine struct {
	options Options
	ctx     context.Context
	cancel  context.CancelFunc
	slots   chan struct{}
	wait    sync.WaitGroup

	mu      sync.Mutex
	running map[Target]context.CancelFunc
}

// New makes an engine without targets.
func New(o Options) *Engine {
	ctx, cancel := context.WithCancel(context.Background())
	return &Engine{
		options: o, ctx: ctx, cancel: cancel,
		slots:   make(chan struct{}, maxParallel),
		running: map[Target]context.CancelFunc{},
	}
}

// Set makes the probed targets equal to the wanted ones. New ones are probed at once, gone ones no longer reported
// soon after. Targets that cannot be probed are left out and named in the error.
func (e *Engine) Set(want []Target) error {
	wanted := make(map[Target]bool, len(want))
	for _, t := range want {
		wanted[t] = true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for t := range e.running {
		if !wanted[t] {
			e.stopLocked(t)
		}
	}
	return e.startLocked(want)
}

// Change probes more targets, and others no more, as Set does. What it costs is by these alone.
func (e *Engine) Change(start, stop []Target) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range stop {
		e.stopLocked(t)
	}
	return e.startLocked(start)
}

// stopLocked ends the probes of a target, if there are any.
func (e *Engine) stopLocked(t Target) {
	if stop, runs := e.running[t]; runs {
		stop()
		delete(e.running, t)
	}
}

// startLocked begins to probe those of the targets that are not probed.
func (e *Engine) startLocked(targets []Target) error {
	if e.ctx.Err() != nil {
		return errors.New("set probes: the engine is closed")
	}
	var errs []error
	for _, t := range targets {
		if _, runs := e.running[t]; runs {
			continue
		}
		if err := t.validate(); err != nil {
			errs = append(errs, fmt.Errorf("probe %v: %w", t.Address, err))
			continue
		}
		ctx, stop := context.WithCancel(e.ctx)
		e.running[t] = stop
		e.wait.Go(func() { e.run(ctx, t) })
	}
	return errors.Join(errs...)
}

// Close ends all probes and waits for them.
func (e *Engine) Close() {
	e.cancel()
	e.wait.Wait()
}

// run probes one target: at once, a second time somewhere within the interval, then regularly.
func (e *Engine) run(ctx context.Context, t Target) {
	wait := health.Second
	for {
		select {
		case e.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		begin := e.options.Clock.Now()
		result := ask(ctx, t)
		<-e.slots
		if ctx.Err() != nil {
			return
		}
		result.At, result.Took = begin, e.options.Clock.Now().Sub(begin)
		e.options.Report([]Result{result})
		left := wait(t.Check.Value().Interval, e.options.Random()) - e.options.Clock.Now().Sub(begin)
		wait = health.Next
		select {
		case <-e.options.Clock.After(max(left, time.Millisecond)):
		case <-ctx.Done():
			return
		}
	}
}

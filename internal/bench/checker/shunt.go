package checker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/loop"
)

// shunt is one of Shunt's probers: alone, for all targets together, or under the engine's schedule
// for steady probes, as in a mux.
type shunt struct {
	job       Job
	packets   *packets // nil: by sockets
	burst     *burst
	engine    *probe.Engine
	good, bad atomic.Uint64 // of steady probes
}

func newShunt(job Job) (Checker, error) {
	s := &shunt{job: job}
	if job.Engine != lb.EnginePacket {
		return s, nil
	}
	var err error
	s.packets, err = openPackets(job)
	return s, err
}

// asker makes the prober.
func (s *shunt) asker(answered func([]probe.Answer)) (probe.Asker, error) {
	if s.packets != nil {
		return s.packets.asker(answered)
	}
	return loop.New(loop.Options{}, answered)
}

// Prepare implements Checker.
func (s *shunt) Prepare(ctx context.Context) (err error) {
	if s.burst, err = newBurst(s.job, s.asker); err != nil || s.packets == nil {
		return err
	}
	return s.packets.wait(ctx)
}

// Once implements Checker.
func (s *shunt) Once(ctx context.Context) (Tally, error) {
	if s.burst == nil {
		return Tally{}, errors.New("nothing was prepared")
	}
	return s.burst.once(ctx)
}

// Steady implements Checker.
func (s *shunt) Steady(context.Context) (err error) {
	s.engine, err = probe.New(probe.Options{
		Clock: clock.System{}, Random: rand.Float64, Report: s.reported,
		Means: []probe.Means{{Name: s.job.Engine, Packets: s.packets != nil, New: s.asker}},
	})
	if err != nil {
		return err
	}
	targets := make([]probe.Target, s.job.Targets)
	for i := range targets {
		targets[i] = s.job.probe(i)
	}
	return s.engine.Set(targets)
}

func (s *shunt) reported(results []probe.Result) {
	var good uint64
	for _, r := range results {
		if r.Good {
			good++
		}
	}
	s.good.Add(good)
	s.bad.Add(uint64(len(results)) - good)
}

// Report implements Checker.
func (s *shunt) Report() Tally { return Tally{Good: s.good.Load(), Bad: s.bad.Load()} }

// Tables implements Checker.
func (s *shunt) Tables() (uint64, error) {
	if s.packets == nil || s.engine == nil {
		return 0, nil
	}
	return s.packets.tables()
}

// Close implements Checker.
func (s *shunt) Close() error {
	var errs []error
	if s.burst != nil {
		errs = append(errs, s.burst.asker.Close())
	}
	if s.engine != nil {
		s.engine.Close()
	}
	if s.packets != nil {
		errs = append(errs, s.packets.close())
	}
	return errors.Join(errs...)
}

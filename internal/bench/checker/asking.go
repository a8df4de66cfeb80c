package checker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// burst sends probes to all targets of a job together through a prober.
type burst struct {
	asker probe.Asker
	ids   []uint32
	// good and left count the probes in flight. done gets one value when none is left.
	good, left atomic.Int64
	done       chan struct{}
}

// newBurst makes the prober with its result handler, and adds the targets.
func newBurst(job Job, open func(answered func([]probe.Answer)) (probe.Asker, error)) (*burst, error) {
	b := &burst{done: make(chan struct{}, 1)}
	var err error
	if b.asker, err = open(b.answered); err != nil {
		return nil, err
	}
	for i := range job.Targets {
		if err := b.asker.Add(uint32(i), job.probe(i)); err != nil {
			return nil, errors.Join(fmt.Errorf("add target %s: %w", job.Target(i), err), b.asker.Close())
		}
		b.ids = append(b.ids, uint32(i))
	}
	return b, nil
}

func (b *burst) answered(answers []probe.Answer) {
	good := int64(0)
	for _, a := range answers {
		if a.Verdict == probe.Good {
			good++
		}
	}
	b.good.Add(good)
	if b.left.Add(-int64(len(answers))) == 0 {
		b.done <- struct{}{}
	}
}

// once probes all targets and waits for the last result.
func (b *burst) once(ctx context.Context) (Tally, error) {
	b.good.Store(0)
	b.left.Store(int64(len(b.ids)))
	b.asker.Ask(b.ids)
	select {
	case <-b.done:
	case <-ctx.Done():
		return Tally{}, context.Cause(ctx)
	}
	good := uint64(b.good.Load())
	return Tally{Good: good, Bad: uint64(len(b.ids)) - good}, nil
}

// probe returns target number i for Shunt's engines.
func (j Job) probe(i int) probe.Target {
	check := lb.Check{
		Kind: lb.CheckTCP, Interval: j.Interval, Timeout: j.Timeout, Through: lb.ThroughDirect, Engine: j.Engine,
	}
	if j.Kind == HTTP {
		check.Kind, check.Method, check.Path, check.Status, check.Version = lb.CheckHTTP, "GET", "/", "200-399", lb.HTTP1
	}
	target := j.Target(i)
	return probe.Of(check, target.Addr(), target.Port())
}

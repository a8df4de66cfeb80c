package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/bench/checker"
)

// lossCase is the loss of many members together.
type lossCase struct {
	name, engine string
	silent       bool
}

var lossCases = []lossCase{
	{"lost-20000", checker.MuxAtOnce, false},
	{"lost-20000-spread", checker.MuxSpread, false},
	{"lost-20000-silent", checker.MuxAtOnce, true},
}

const (
	// lossMembers is the number of members, of which checker.Job.Lost are lost.
	lossMembers = 22_000
	// lossInterval is the probe interval, and the timeout of a probe.
	lossInterval = time.Second
	lossRounds   = 5
)

// lossProbe is the mux's probe.
var lossProbe = healthCase{kind: checker.TCP, rules: lossMembers}

// lose fails most members of a mux repeatedly, and returns how soon the mux's tables marked them
// dead.
func (h healthRun) lose(ctx context.Context, c lossCase, program string) (row Row, err error) {
	scale := h.scale
	scale.rules = func(n int) int { return scaleOf(h.o).rules(n) / checker.Members * checker.Members }
	scale.interval = lossInterval
	h.scale = scale
	h.o.progressf("health %s: %d rounds", c.name, h.scale.losses)
	who := contestant{engine: c.engine, start: byProgram(program, CheckerCommand)}
	err = h.turn(ctx, lossProbe, who, func(r *healthRig, run runner, job checker.Job, base busyness) error {
		figures := &lossFigures{job: job}
		if err := r.responder.Watch(job.First, job.Targets, job.Interval); err != nil {
			return err
		}
		if err := run.prepare(); err != nil {
			return err
		}
		if err := pause(ctx, job.Interval); err != nil {
			return err
		}
		if err := r.responder.Recount(); err != nil {
			return err
		}
		for range h.scale.losses {
			if err := h.lossRound(ctx, c, r, run, job, base, figures); err != nil {
				return err
			}
		}
		row = figures.row(c)
		return nil
	})
	return row, err
}

// lossRound stops the servers, waits until the mux follows, and starts them again.
func (h healthRun) lossRound(ctx context.Context, c lossCase, r *healthRig, run runner, job checker.Job, base busyness, into *lossFigures) error {
	var gone int64
	var got checker.Tally
	s, err := h.during(r, run, base, func() (err error) {
		if err := r.responder.Gone(job.First, job.Lost(), c.silent); err != nil {
			return err
		}
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return err
		}
		gone = now.Nano()
		got, err = run.once()
		return err
	})
	if err != nil {
		return err
	}
	if got.Loss == nil || got.Loss.FailedNS < gone || got.Loss.OutNS < got.Loss.FailedNS {
		return fmt.Errorf("a loss at %d: %+v: nothing failed, or members were out before", gone, got.Loss)
	}
	into.add(gone, got.Loss, s)
	if err := r.responder.Gone(job.First, 0, false); err != nil {
		return err
	}
	if err := run.steady(); err != nil {
		return err
	}
	if into.late += s.seen.Missed; s.seen.Starts == 0 {
		return errors.New("no probe began")
	}
	if err := r.responder.Recount(); err != nil {
		return err
	}
	return pause(ctx, job.Interval)
}

// lossFigures holds the figures of several losses, in s and ms.
type lossFigures struct {
	job                                     checker.Job
	wall, cpu, out, member50, member99, max []float64
	late                                    uint64
}

func (f *lossFigures) add(gone int64, l *checker.Loss, s stretch) {
	const ms = 1e6
	f.wall = append(f.wall, float64(l.OutNS-gone)/1e9)
	f.cpu = append(f.cpu, s.own)
	f.out = append(f.out, float64(l.OutNS-l.FailedNS)/ms)
	f.member50, f.member99 = append(f.member50, float64(l.P50NS)/ms), append(f.member99, float64(l.P99NS)/ms)
	f.max = append(f.max, float64(l.MaxNS)/ms)
}

func (f *lossFigures) row(c lossCase) Row {
	return Row{Case: c.name, Fields: []Field{
		{engineField, shuntEngines[0]}, {"wall_s", round(Median(f.wall))}, {"cpu_s", round(Median(f.cpu))}, {"late", f.late},
		{"p50_ms", round(Median(f.out))}, {"max_ms", round(Percentile(f.out, 1))}, {"member_p50_ms", round(Median(f.member50))},
		{"member_p99_ms", round(Median(f.member99))}, {"member_max_ms", round(Percentile(f.max, 1))},
		{"rules", f.job.Targets}, {"lost", f.job.Lost()}, {"runs", len(f.out)},
	}}
}

func lossNames() (names []string) {
	for _, c := range lossCases {
		names = append(names, c.name)
	}
	return names
}

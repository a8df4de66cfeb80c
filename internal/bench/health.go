package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/bench/checker"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

// engineField is the field with the engine of a row.
const engineField = "engine"

// healthCase is the kind and number of the probed targets.
type healthCase struct {
	name, kind string
	rules      int
	// steadily means that the case also runs over a time, each rule once an interval.
	steadily bool
}

var healthCases = []healthCase{
	{"tcp-28000", checker.TCP, 28_000, false}, {"http-28000", checker.HTTP, 28_000, false},
	{"tcp-140000", checker.TCP, 140_000, true}, {"http-140000", checker.HTTP, 140_000, true},
}

// soakCase is the endurance run.
const soakCase = "soak"

var healthSuite = Suite{
	Name:  "health",
	Title: "Health checks, beside others'",
	About: "Checkers probe servers that all serve, each pinned to one CPU, in turns. The servers are a program without state at the other " +
		"end of a veth, which answers SYNs, requests and FINs to any address; it runs on the same CPU and is part of every figure, as is " +
		"the kernel's work in softirqs. `wall_s`: all rules are probed once, as fast as the checker can, until its last verdict. `cpu_s`: " +
		"what probing all rules once takes of the CPU, in seconds of its busy time beyond what it was busy with before; for 28,000 rules " +
		"of that run, for 140,000 of a steady one, in which each rule is probed every 5 s, measured over 10 s from the third interval on; " +
		"`us_per_probe` is the same per probe, `cores` what 140,000 rules every 5 s take of CPUs of this kind, `burst_cpu_s` what all of " +
		"them at once took. `own_us` is what the checker's own threads are charged per probe, with the softirqs that interrupt them: a " +
		"check of the figures before it, which are never less, and what is left to go by where others use the CPU too. `late` are deadlines missed: " +
		"of probes at once, those that began later than 5 s, of steady ones those that began more than two intervals after the last one " +
		"of their rule; `jitter_p99_ms` by how many ms more than an interval two probes of a rule are apart. The servers see both, no " +
		"checker says it of itself. `wrong` are verdicts that a server does not serve. `done` is the percentage of the probes due that a " +
		"checker began in a steady run. Engines: `packet` and `socket` are Shunt's; `tokio` is a Rust program, a task and a connection " +
		"per probe, HTTP written by hand; `go` a goroutine per probe and net/http; both hold at most 15,000 connections. `haproxy` " +
		"wants a file descriptor for each server: `rules` fewer are measured, and `cpu_s` and `cores` are scaled up; it cannot be told " +
		"to check all at once. `soak`: 140,000 rules over HTTP every 5 s for `seconds`, while one frame in 1,000 is lost, of either " +
		"direction; `bytes_per_rule` is the memory of the checker's process and its tables, without what it had with no rule: `tables_…`, what of " +
		"it the heap reaches (`heap_…`), what that keeps beside (`spare_…`), stacks and the runtime's own; `garbage_…` it takes beyond these " +
		"until it is collected. `lost-20000`: a " +
		"whole mux agent on that CPU, whose packet engine asks 22,000 members of 2,000 endpoints every second; 20,000 of them go at once, " +
		"ten of each endpoint, and refuse, or are silent (`-silent`). All probes of an interval are due at once, the worst there is, or spread " +
		"over it (`-spread`). `p50_ms`, `max_ms`: from the last failed probe that a member died of until all 20,000 are dead in the tables, of " +
		"`runs`; `member_…`: from each member's own. Then packets run through the program: none may leave for a dead member. `wall_s`: from " +
		"the loss, of which two probes in a row must tell.",
	Plotted: []string{"us_per_probe"}, Unit: "µs of CPU time per probe", Series: engineField,
	Unplotted: append(lossNames(), soakCase),
	Cases:     append(append(caseNames(healthCases), lossNames()...), soakCase),
	Takes:     19 * time.Minute, TakesShort: time.Minute,
	Goals: []Goal{
		atMost("tcp-140000", "us_per_probe", 2.5).of("packet"), atMost("http-140000", "us_per_probe", 3.3).of("packet"),
		atMost("tcp-140000", "us_per_probe", 15).of("socket"), atMost("http-140000", "us_per_probe", 22).of("socket"),
		atMost("http-28000", "wall_s", 0.09).of("packet"), atMost("http-140000", "wall_s", 0.45).of("packet"),
		none("tcp-140000", "late").of("packet"), none("http-140000", "late").of("packet"),
		atMost("http-140000", "jitter_p99_ms", 20).of("packet"),
		atMost("lost-20000", "max_ms", 50).of("packet"), atMost("lost-20000-spread", "max_ms", 50).of("packet"),
		atMost("lost-20000-silent", "max_ms", 50).of("packet"),
		none(soakCase, "late").of("packet"), atMost(soakCase, "jitter_p99_ms", 20).of("packet"), none(soakCase, "wrong").of("packet"),
		atMost(soakCase, "bytes_per_rule", 400).of("packet"),
	},
	run: runHealth,
}

func caseNames(cases []healthCase) (names []string) {
	for _, c := range cases {
		names = append(names, c.name)
	}
	return names
}

const (
	// healthInterval is the probe interval of steady rules. healthTimeout bounds a probe, and
	// leaves the kernel time to retransmit a lost SYN, which it does after a second.
	healthInterval, healthTimeout = 5 * time.Second, 2 * time.Second
	// healthWarm is how long a steady run goes on before it is measured. healthWindow is how long
	// it is measured. Both are in intervals.
	healthWarm, healthWindow = 2, 2
	// burstRounds are the rounds of 28,000 rules together. healthRounds are those of all other
	// cases.
	burstRounds, healthRounds = 5, 3
	// healthQuiet is the pause before a turn. healthIdle is how long the idle CPU is measured.
	healthQuiet, healthIdle = 300 * time.Millisecond, 500 * time.Millisecond
	// healthTail is how long after the last verdict the remaining work of the probes is still
	// counted.
	healthTail = 10 * time.Millisecond

	// busyWorthTelling is the share of other work on the CPU above which a note is printed.
	busyWorthTelling = 0.1

	soakUsual, soakLoss = 30 * time.Second, 0.001
)

// healthScale is the size of a measurement.
type healthScale struct {
	rules              func(int) int
	interval           time.Duration
	quiet, idle        time.Duration
	bursts, others     int
	warm, window, soak int // intervals
	losses             int
}

func scaleOf(o Options) healthScale {
	if o.Short {
		return healthScale{
			rules: func(n int) int { return n / 100 }, interval: 500 * time.Millisecond, quiet: 0, idle: 20 * time.Millisecond,
			bursts: 1, others: 1, warm: 2, window: 1, soak: 2, losses: 1,
		}
	}
	soak := soakUsual
	if o.Soak > 0 {
		soak = o.Soak
	}
	return healthScale{
		rules: func(n int) int { return n }, interval: healthInterval, quiet: healthQuiet, idle: healthIdle,
		bursts: burstRounds, others: healthRounds, warm: healthWarm, window: healthWindow, soak: max(1, int(soak/healthInterval)), losses: lossRounds,
	}
}

func runHealth(ctx context.Context, o Options, emit func(Row)) error {
	all, err := contestants(ctx, o)
	if err != nil {
		return err
	}
	cpu, err := benchrun.LastCPU()
	if err != nil {
		return err
	}
	h := healthRun{o: o, scale: scaleOf(o), cpu: cpu}
	for _, c := range healthCases {
		if !o.wants(c.name) {
			continue
		}
		if err := h.compare(ctx, c, all, emit); err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
	}
	program, err := o.program()
	if err != nil {
		return err
	}
	for _, c := range lossCases {
		if !o.wants(c.name) {
			continue
		}
		row, err := h.lose(ctx, c, program)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		emit(row)
	}
	if !o.wants(soakCase) {
		return nil
	}
	if !slices.ContainsFunc(shuntEngines, checker.Has) {
		o.notef("case %s: left out: this version has no engine for it", soakCase)
	}
	for _, who := range all {
		if !slices.Contains(shuntEngines, who.engine) {
			continue
		}
		row, err := h.soak(ctx, who)
		if err != nil {
			return fmt.Errorf("case %s: %w", soakCase, err)
		}
		emit(row)
	}
	return nil
}

// healthRun measures one case after another.
type healthRun struct {
	o     Options
	scale healthScale
	cpu   int
}

// compare lets the contestants take turns at a case.
func (h healthRun) compare(ctx context.Context, c healthCase, all []contestant, emit func(Row)) error {
	figures := map[string]*healthFigures{}
	for _, who := range all {
		figures[who.engine] = &healthFigures{rules: h.scale.rules(c.rules)}
	}
	bursts := h.scale.others
	if !c.steadily {
		bursts = h.scale.bursts
	}
	for i := range bursts {
		for _, who := range all {
			if !who.atOnce {
				continue
			}
			h.o.progressf("health %s: %s, all at once, %d of %d", c.name, who.engine, i+1, bursts)
			if err := h.burst(ctx, c, who, figures[who.engine]); err != nil {
				return fmt.Errorf("%s: %w", who.engine, err)
			}
		}
	}
	for i := range h.scale.others {
		for _, who := range all {
			if !c.steadily {
				continue
			}
			h.o.progressf("health %s: %s, steadily, %d of %d", c.name, who.engine, i+1, h.scale.others)
			if err := h.steady(ctx, c, who, figures[who.engine]); err != nil {
				return fmt.Errorf("%s: %w", who.engine, err)
			}
		}
	}
	for _, who := range all {
		if row, ok := figures[who.engine].row(c, who.engine); ok {
			emit(row)
		}
	}
	return nil
}

// turn gives a contestant a new rig. base is the CPU's busy share before the contestant starts.
func (h healthRun) turn(ctx context.Context, c healthCase, who contestant, f func(r *healthRig, run runner, job checker.Job, base busyness) error) (err error) {
	r, err := openHealthRig(h.o, h.cpu)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := pause(ctx, h.scale.quiet); err != nil {
		return err
	}
	before, err := readCore(h.cpu)
	if err != nil {
		return err
	}
	if err := pause(ctx, h.scale.idle); err != nil {
		return err
	}
	after, err := readCore(h.cpu)
	if err != nil {
		return err
	}
	base := after.baseline(before)
	if base > busyWorthTelling {
		h.o.notef("CPU %d was %.0f %% busy before %s came: figures are too good or too bad", h.cpu, 100*float64(base), who.engine)
	}
	job := r.job(who.engine, c, h.scale.interval, h.scale.rules(c.rules))
	if who.rules > 0 {
		job.Targets = min(job.Targets, who.rules)
	}
	run, err := who.start(ctx, r, job)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, run.close())
		if ctx.Err() != nil {
			err = context.Cause(ctx) // the end of ctx caused any other error
		}
	}()
	return f(r, run, job, base)
}

// stretch is a part of a run: the time that CPU and checker used, and the servers' counters.
type stretch struct {
	// All are in s. cpu is the CPU's busy time in excess of the baseline, and at least own, the
	// checker's.
	cpu, own, took float64
	seen           benchrun.Seen
}

// during measures while f runs.
func (h healthRun) during(r *healthRig, run runner, base busyness, f func() error) (s stretch, err error) {
	had, err := run.spent()
	if err != nil {
		return s, err
	}
	before, err := readCore(h.cpu)
	if err != nil {
		return s, err
	}
	if err := f(); err != nil {
		return s, err
	}
	after, err := readCore(h.cpu)
	if err != nil {
		return s, err
	}
	has, err := run.spent()
	if err != nil {
		return s, err
	}
	_, took := after.since(before)
	s = stretch{own: (has - had).Seconds(), took: took.Seconds()}
	// If other processes use the CPU too, they get less of it than before.
	s.cpu = max(s.own, after.spent(before, base))
	s.seen, err = r.responder.Seen()
	if err == nil && s.seen.Failed > 0 {
		err = fmt.Errorf("the servers could not answer %d times", s.seen.Failed)
	}
	return s, err
}

// burst probes all rules once.
func (h healthRun) burst(ctx context.Context, c healthCase, who contestant, into *healthFigures) error {
	return h.turn(ctx, c, who, func(r *healthRig, run runner, job checker.Job, base busyness) error {
		if err := run.prepare(); err != nil {
			return err
		}
		if err := r.responder.Expect(job.Interval); err != nil {
			return err
		}
		var got checker.Tally
		s, err := h.during(r, run, base, func() (err error) {
			if got, err = run.once(); err != nil {
				return err
			}
			return pause(ctx, healthTail)
		})
		if err != nil {
			return err
		}
		if got.Good+got.Bad != uint64(job.Targets) {
			return fmt.Errorf("%d verdicts: want %d", got.Good+got.Bad, job.Targets)
		}
		if c.kind == checker.HTTP && s.seen.Requests < got.Good || s.seen.Starts < got.Good {
			return fmt.Errorf("%d good verdicts of %d probes with %d requests", got.Good, s.seen.Starts, s.seen.Requests)
		}
		into.bursts = append(into.bursts, burstFigure{
			wall: float64(got.WallNS) / 1e9, cpu: s.cpu, own: s.own, late: s.seen.Missed, wrong: got.Bad,
		})
		return nil
	})
}

// steady probes each rule once an interval for a while.
func (h healthRun) steady(ctx context.Context, c healthCase, who contestant, into *healthFigures) error {
	return h.turn(ctx, c, who, func(r *healthRig, run runner, job checker.Job, base busyness) error {
		figure, err := h.watch(ctx, r, run, job, base, h.scale.window)
		into.steadies = append(into.steadies, figure)
		return err
	})
}

// watch begins a steady run and measures window intervals of it, after the warm-up intervals.
func (h healthRun) watch(ctx context.Context, r *healthRig, run runner, job checker.Job, base busyness, window int) (f steadyFigure, err error) {
	if err := r.responder.Watch(job.First, job.Targets, job.Interval); err != nil {
		return f, err
	}
	if err := run.steady(); err != nil {
		return f, err
	}
	if err := pause(ctx, time.Duration(h.scale.warm)*job.Interval); err != nil {
		return f, err
	}
	counted, err := run.report(checker.OrderReport)
	if err != nil {
		return f, err
	}
	if err := r.responder.Recount(); err != nil {
		return f, err
	}
	s, err := h.during(r, run, base, func() error { return pause(ctx, time.Duration(window)*job.Interval) })
	if err != nil {
		return f, err
	}
	got, err := run.report(checker.OrderReport)
	if err != nil {
		return f, err
	}
	if s.seen.Starts == 0 {
		return f, errors.New("no probe began")
	}
	starts, due := float64(s.seen.Starts), float64(job.Targets)*s.took/job.Interval.Seconds()
	return steadyFigure{
		perProbe: s.cpu / starts, own: s.own / starts, done: 100 * starts / due, late: s.seen.Missed, jitter: s.seen.Percentile(0.99),
		wrong: got.Bad - min(got.Bad, counted.Bad), rules: job.Targets, lost: s.seen.Lost, seconds: s.took,
	}, nil
}

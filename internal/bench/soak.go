package bench

import (
	"context"
	"time"

	"github.com/shuntlb/shunt/internal/bench/checker"
)

// soak runs an engine for long while frames are lost, and returns its figures, including late and
// wrong probes.
func (h healthRun) soak(ctx context.Context, who contestant) (row Row, err error) {
	c := healthCases[len(healthCases)-1]
	h.o.progressf("health %s: %s, %s", soakCase, who.engine, time.Duration(h.scale.soak)*h.scale.interval)
	err = h.turn(ctx, c, who, func(r *healthRig, run runner, job checker.Job, base busyness) error {
		empty, err := run.report(checker.OrderMemory)
		if err != nil {
			return err
		}
		if err := r.responder.Lose(soakLoss); err != nil {
			return err
		}
		f, err := h.watch(ctx, r, run, job, base, h.scale.soak)
		if err != nil {
			return err
		}
		full, err := run.report(checker.OrderMemory)
		if err != nil {
			return err
		}
		row = Row{Case: soakCase, Fields: []Field{
			{engineField, who.engine}, {"cpu_s", round(f.perProbe * float64(job.Targets))}, {"late", f.late},
			{"us_per_probe", round(1e6 * f.perProbe)}, {"own_us", round(1e6 * f.own)}, {"wrong", f.wrong}, {"rules", f.rules}, {"jitter_p99_ms", f.jitter},
			{"done", round(f.done)}, {"lost", f.lost}, {"seconds", round(f.seconds)},
		}}
		row.Fields = append(row.Fields, memoryPerRule(*empty.Memory, *full.Memory, job.Targets)...)
		return nil
	})
	return row, err
}

// memoryPerRule returns how much more memory a checker takes with rules than without any, for each
// rule.
func memoryPerRule(empty, full checker.Memory, rules int) []Field {
	per := func(of func(checker.Memory) uint64) float64 {
		return round((float64(of(full)) - float64(of(empty))) / float64(rules))
	}
	return []Field{
		{"bytes_per_rule", per(func(m checker.Memory) uint64 { return m.Resident + m.Tables })},
		{"tables_per_rule", per(func(m checker.Memory) uint64 { return m.Tables })},
		{"heap_per_rule", per(func(m checker.Memory) uint64 { return m.Heap })},
		{"spare_per_rule", per(func(m checker.Memory) uint64 { return m.Spare })},
		{"garbage_per_rule", per(func(m checker.Memory) uint64 { return m.Running - min(m.Running, m.Resident) })},
	}
}

package benchrun

import (
	"context"
	"fmt"
)

// XDP verdicts that a program that sends a packet on returns (linux/bpf.h).
const (
	xdpTX       = 3
	xdpRedirect = 4
)

// Round holds the ns per packet of one repetition: every target had its turns in it.
type Round struct {
	Null, Floor float64
	Programs    []float64 // in the order in which Compare got them
}

// OverFloor is what program number i takes beyond the floor. The null target is part of both and cancels.
func (r Round) OverFloor(i int) float64 { return r.Programs[i] - r.Floor }

// NetFloor is what the floor takes beyond the null target.
func (r Round) NetFloor() float64 { return r.Floor - r.Null }

// Comparison is the outcome of Compare.
type Comparison struct {
	Rounds  []Round
	Packets []uint64 // that each program under test got, warm-up included
}

// Effort says how much Compare measures.
type Effort struct {
	Rounds  int
	Packets int // that each target gets in one round
	// Turns are the pieces that a target's packets of one round come in. Many keep the targets close together in time, so
	// that whatever else the machine does meets all alike; few give a program time to bring its tables back into the
	// caches that others filled.
	Turns int
}

// Compare measures null, floor and the programs in turns. Each round begins with another of them; progress is called
// before every round.
func (h *Harness) Compare(ctx context.Context, programs []Target, e Effort, progress func(round int)) (Comparison, error) {
	return compare(ctx, append([]Target{h.Null(), h.Floor()}, programs...), e, h.timed, progress)
}

// compare gives null, floor and the programs, which are the targets in that order, their turns. run sends packets through one of them.
func compare(ctx context.Context, targets []Target, e Effort, run func(t Target, packets int, seed uint64) (Run, error),
	progress func(round int)) (Comparison, error) {
	c := Comparison{Packets: make([]uint64, len(targets)-2)}
	for i := range e.Rounds {
		progress(i)
		sums := make([]Run, len(targets))
		for turn := range e.Turns * len(targets) {
			if err := ctx.Err(); err != nil {
				return c, err
			}
			k := (i + turn) % len(targets)
			seed := uint64(i*e.Turns+turn/len(targets)+1) * 0x9e3779b97f4a7c15
			got, err := run(targets[k], (e.Packets+e.Turns-1)/e.Turns, seed)
			if err != nil {
				return c, err
			}
			sums[k].Stretches = append(sums[k].Stretches, got.Stretches...)
			sums[k].Packets += got.Packets
		}
		round := Round{Null: sums[0].Middle(), Floor: sums[1].Middle()}
		for p, sum := range sums[2:] {
			round.Programs = append(round.Programs, sum.Middle())
			c.Packets[p] += sum.Packets
		}
		c.Rounds = append(c.Rounds, round)
	}
	return c, nil
}

// timed runs a target, drops the first eighth of the stretches, in which caches and branch predictors settle, and
// checks that the last packet was sent on.
func (h *Harness) timed(t Target, packets int, seed uint64) (Run, error) {
	run, err := h.Run(t, packets, seed)
	if err != nil {
		return run, err
	}
	if run.Verdict != xdpTX && run.Verdict != xdpRedirect {
		return run, fmt.Errorf("run %s: verdict %d for %+v: want %d or %d", t, run.Verdict, run.Last, xdpTX, xdpRedirect)
	}
	run.Stretches = run.Stretches[len(run.Stretches)/8:]
	return run, nil
}

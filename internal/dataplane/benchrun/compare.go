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

// Round holds the ns per packet of one repetition: every target had its turn in it.
type Round struct{ Null, Floor, Program float64 }

// OverFloor is what the program takes beyond the floor. The null target is part of both and cancels.
func (r Round) OverFloor() float64 { return r.Program - r.Floor }

// NetFloor is what the floor takes beyond the null target.
func (r Round) NetFloor() float64 { return r.Floor - r.Null }

// Comparison is the outcome of Compare.
type Comparison struct {
	Rounds  []Round
	Packets uint64 // that the program under test got, warm-up included
}

// turns is into how many turns a target's packets of one round are cut: the turns of the three targets are close
// together in time, so that whatever else the machine does meets all alike.
const turns = 8

// Compare measures null, floor and the program in turns. Each round begins with another of the three. packets is what
// each target gets in one round; progress is called before every round.
func (h *Harness) Compare(ctx context.Context, program Target, rounds, packets int, progress func(round int)) (Comparison, error) {
	var c Comparison
	targets := [...]Target{h.Null(), h.Floor(), program}
	for i := range rounds {
		progress(i)
		var sums [len(targets)]Run
		for turn := range turns * len(targets) {
			if err := ctx.Err(); err != nil {
				return c, err
			}
			k := (i + turn) % len(targets)
			seed := uint64(i*turns+turn/len(targets)+1) * 0x9e3779b97f4a7c15
			run, err := h.timed(targets[k], (packets+turns-1)/turns, seed)
			if err != nil {
				return c, err
			}
			sums[k].Stretches = append(sums[k].Stretches, run.Stretches...)
			sums[k].Packets += run.Packets
		}
		c.Rounds = append(c.Rounds, Round{Null: sums[0].Middle(), Floor: sums[1].Middle(), Program: sums[2].Middle()})
		c.Packets += sums[2].Packets
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

package benchrun

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// Choices measures what it costs to choose a member, by itself: in a loop, with what it reads in the caches.
type Choices struct {
	programs struct {
		Nothing   *ebpf.Program `ebpf:"choose_nothing"`
		Ring      *ebpf.Program `ebpf:"choose_by_ring"`
		Scheduler *ebpf.Program `ebpf:"choose_by_scheduler"`
	}
}

// OpenChoices chooses members of an endpoint of a mux.
func OpenChoices(mux *Mux, e lb.EndpointKey) (*Choices, error) {
	slot, known := mux.Slot(e)
	if !known {
		return nil, fmt.Errorf("choices: the mux has no endpoint %v", e)
	}
	spec, err := loadSchedule()
	if err != nil {
		return nil, fmt.Errorf("read object of choices: %w", err)
	}
	if err := spec.Variables["choices_slot"].Set(slot); err != nil {
		return nil, fmt.Errorf("set choices_slot: %w", err)
	}
	c := &Choices{}
	return c, mux.Beside(spec, &c.programs)
}

// ChoiceCost is what a choice costs, in ns.
type ChoiceCost struct{ Ring, Scheduler float64 }

// Round measures some ten thousands of choices each way. The caller's thread should stay on its CPU.
func (c *Choices) Round() (ChoiceCost, error) {
	const runs = 200
	var ns [3]float64
	frame := make([]byte, 64)
	for i, p := range []*ebpf.Program{c.programs.Nothing, c.programs.Ring, c.programs.Scheduler} {
		verdict, took, err := p.Benchmark(frame, runs, nil)
		if err != nil {
			return ChoiceCost{}, fmt.Errorf("run choices: %w", err)
		}
		if verdict != xdpPass {
			return ChoiceCost{}, fmt.Errorf("run choices: verdict %d", verdict)
		}
		ns[i] = float64(took.Nanoseconds()) / float64(scheduleChoicesCHOICES)
	}
	return ChoiceCost{ns[1] - ns[0], ns[2] - ns[0]}, nil
}

// xdpPass is a program's verdict (linux/bpf.h).
const xdpPass = 2

// Close unloads the programs.
func (c *Choices) Close() error {
	return errors.Join(c.programs.Nothing.Close(), c.programs.Ring.Close(), c.programs.Scheduler.Close())
}

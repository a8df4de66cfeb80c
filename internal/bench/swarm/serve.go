package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Order is one line of input to a process of nodes. It responds to each with one Answer, in order.
type Order struct {
	// Start starts nodes 0 to Start-1 of Manager, whose state is below Dir.
	Start        int    `json:",omitempty"`
	Manager, Dir string `json:",omitempty"`
	// Synced waits until all reading nodes have applied a plan of this epoch or a later one.
	Synced int64 `json:",omitempty"`
	// Arm prepares Await, which returns when Node applied its next plan.
	Arm, Await bool `json:",omitempty"`
	Node       int  `json:",omitempty"`
	// Updated returns the nodes that received a plan since the last such order.
	Updated bool `json:",omitempty"`
	// Steady sets Counters, which selects whether the counters of all nodes change all the time
	// from now on.
	Steady, Counters bool `json:",omitempty"`
	// Freeze makes the last nodes stop reading.
	Freeze int `json:",omitempty"`
	// Within bounds the wait.
	Within time.Duration `json:",omitempty"`
}

// Answer is the result of an order.
type Answer struct {
	Error string `json:",omitempty"`
	// At is the time of the event, by the machine's clock.
	At time.Time
	// Peak is the most connection attempts within a second since the last Synced.
	Peak    int   `json:",omitempty"`
	Updated []int `json:",omitempty"`
}

// Serve executes orders until their end. Then all nodes stop.
func Serve(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	p := process{log: log}
	defer p.close()
	for {
		var o Order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("orders: %w", err)
		}
		a, err := p.obey(ctx, o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

type process struct {
	log   *slog.Logger
	swarm *Swarm
	armed func(context.Context) (time.Time, error)
}

func (p *process) close() {
	if p.swarm != nil {
		p.swarm.Close()
	}
}

func (p *process) obey(ctx context.Context, o Order) (a Answer, err error) {
	within, cancel := context.WithTimeout(ctx, o.Within)
	defer cancel()
	a.At = time.Now()
	switch {
	case o.Start > 0:
		p.swarm = Start(ctx, o.Manager, o.Dir, o.Start, p.log)
	case p.swarm == nil:
		err = errors.New("no nodes were started")
	case o.Synced > 0:
		a.At, a.Peak, err = p.swarm.Synced(within, o.Synced)
	case o.Arm:
		p.armed = p.swarm.Applied(o.Node)
	case o.Await:
		a.At, err = p.armed(within)
	case o.Updated:
		a.Updated = p.swarm.Updated()
	case o.Steady:
		p.swarm.counting.Store(o.Counters)
	case o.Freeze > 0:
		err = p.swarm.Freeze(ctx, o.Freeze)
	}
	return a, err
}

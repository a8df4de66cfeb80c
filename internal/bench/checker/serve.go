package checker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Tally is how many verdicts there are, and of which kind.
type Tally struct {
	Good uint64 `json:"good"`
	Bad  uint64 `json:"bad"`
	// WallNS is, after an order to probe all once, how long that took in ns.
	WallNS int64 `json:"wall_ns"`
	// Memory is, after an order to tell it, that of process and tables.
	Memory *Memory `json:"memory,omitempty"`
	// Loss is, of engines that are muxes, how the members went that were lost.
	Loss *Loss `json:"loss,omitempty"`
}

// Orders: one line each, answered by one line, the JSON of a Tally. A checker begins with such a line when it can take orders, and
// ends with its input.
const (
	OrderPrepare = "prepare" // make ready for OrderOnce; answer when you are
	OrderOnce    = "once"    // probe all targets once, as fast as you can; answer when the last verdict is there
	OrderSteady  = "steady"  // probe each target once an interval from now on; answer at once
	OrderReport  = "report"  // answer with the verdicts since OrderSteady
	OrderMemory  = "memory"  // answer with the memory that the process and its tables take; only Go programs are asked
)

// Checker probes the targets of its job.
type Checker interface {
	// Prepare makes ready for Once.
	Prepare(ctx context.Context) error
	// Once probes all targets once and returns when it knows all verdicts.
	Once(ctx context.Context) (Tally, error)
	// Steady begins to probe each target once an interval, until ctx ends.
	Steady(ctx context.Context) error
	// Report is the verdicts since Steady.
	Report() Tally
	// Tables is the kernel's memory, in bytes, that holds rules.
	Tables() (uint64, error)
	// Close ends everything.
	Close() error
}

// engines make checkers by their names.
var engines = map[string]func(Job) (Checker, error){
	lb.EnginePacket: newShunt, lb.EngineSocket: newShunt, "go": newGoroutines, MuxAtOnce: newMux, MuxSpread: newMux,
}

// Serve probes by orders until there are no more of them.
func Serve(ctx context.Context, job Job, in io.Reader, out io.Writer) (err error) {
	open, ok := engines[job.Engine]
	if !ok {
		return fmt.Errorf("--engine: %q: is unknown", job.Engine)
	}
	c, err := open(job)
	if err != nil {
		return fmt.Errorf("open engine %s: %w", job.Engine, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		if closed := c.Close(); err == nil {
			err = closed
		}
	}()
	answers := json.NewEncoder(out)
	if err := answers.Encode(Tally{}); err != nil {
		return err
	}
	for orders := bufio.NewScanner(in); orders.Scan(); {
		t, err := obey(ctx, c, orders.Text())
		if err != nil {
			return fmt.Errorf("order %s: %w", orders.Text(), err)
		}
		if err := answers.Encode(t); err != nil {
			return err
		}
	}
	return nil
}

func obey(ctx context.Context, c Checker, order string) (t Tally, err error) {
	switch order {
	case OrderPrepare:
		return t, c.Prepare(ctx)
	case OrderOnce:
		began := time.Now()
		t, err = c.Once(ctx)
		t.WallNS = time.Since(began).Nanoseconds()
		return t, err
	case OrderSteady:
		return t, c.Steady(ctx)
	case OrderReport:
		return c.Report(), nil
	case OrderMemory:
		m, err := memory()
		if err != nil {
			return t, err
		}
		m.Tables, err = c.Tables()
		t.Memory = &m
		return t, err
	}
	return t, fmt.Errorf("must be %s, %s, %s, %s or %s", OrderPrepare, OrderOnce, OrderSteady, OrderReport, OrderMemory)
}

// Has tells whether this program has an engine.
func Has(engine string) bool { return engines[engine] != nil }

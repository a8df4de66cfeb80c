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

// Tally counts verdicts by kind.
type Tally struct {
	Good uint64 `json:"good"`
	Bad  uint64 `json:"bad"`
	// WallNS is the duration of OrderOnce in ns.
	WallNS int64 `json:"wall_ns"`
	// Memory is the memory of process and tables, in the response to OrderMemory.
	Memory *Memory `json:"memory,omitempty"`
	// Loss holds the delays of a loss, for engines that are muxes.
	Loss *Loss `json:"loss,omitempty"`
}

// Orders are lines on standard input. Each gets a response line, the JSON of a Tally. A checker
// writes such a line when it is ready, and exits when its input ends.
const (
	OrderPrepare = "prepare" // make ready for OrderOnce; respond when done
	// OrderOnce: probe all targets once, as fast as possible; respond after the last verdict.
	OrderOnce   = "once"
	OrderSteady = "steady" // probe each target once an interval from now on; respond immediately
	OrderReport = "report" // respond with the verdicts since OrderSteady
	// OrderMemory: respond with the memory of process and tables; sent to Go programs only.
	OrderMemory = "memory"
)

// Checker probes the targets of its job.
type Checker interface {
	// Prepare makes ready for Once.
	Prepare(ctx context.Context) error
	// Once probes all targets once and returns when it has all verdicts.
	Once(ctx context.Context) (Tally, error)
	// Steady starts to probe each target once an interval, until ctx ends.
	Steady(ctx context.Context) error
	// Report returns the verdicts since Steady.
	Report() Tally
	// Tables returns the kernel memory, in bytes, that holds targets.
	Tables() (uint64, error)
	// Close stops probing and releases everything.
	Close() error
}

// engines make checkers, by name.
var engines = map[string]func(Job) (Checker, error){
	lb.EnginePacket: newShunt, lb.EngineSocket: newShunt, "go": newGoroutines, MuxAtOnce: newMux, MuxSpread: newMux,
}

// Serve executes orders until the input ends.
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

// Has reports whether this program has an engine.
func Has(engine string) bool { return engines[engine] != nil }

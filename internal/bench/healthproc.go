package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/bench/checker"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/netdev"
)

// CheckerCommand is the hidden command of the probing process.
const CheckerCommand = "bench-checker"

// maxInFlight bounds the concurrent connections of rivals, by the file descriptors that Linux
// systems commonly allow.
const maxInFlight = 15_000

// healthInFlight returns maxInFlight, or fewer if the limit of file descriptors is lower.
func healthInFlight() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return maxInFlight
	}
	return int(min(maxInFlight, limit.Max/4*3))
}

// runner is a running checker: Shunt's, or a rival.
type runner interface {
	// prepare makes ready for once.
	prepare() error
	// once probes all targets once.
	once() (checker.Tally, error)
	// steady begins to probe every target once an interval.
	steady() error
	// report returns the verdicts since steady. order is one of the checker's.
	report(order string) (checker.Tally, error)
	// spent returns the CPU time of its threads, with the softirqs that ran on top of them.
	spent() (time.Duration, error)
	close() error
}

// processTime returns the CPU time of all threads of a process, by its clock
// (clock_getcpuclockid(3)).
func processTime(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED of a process
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// process is a checker that executes the orders of package checker.
type process struct {
	command *exec.Cmd
	orders  io.WriteCloser
	answers *json.Decoder
	said    bytes.Buffer // standard error
}

// start starts a program in the namespace near, on the rig's CPU alone. It ends with ctx.
func (r *healthRig) start(command *exec.Cmd) error {
	return netdev.In(r.near, func() error {
		unpin, err := benchrun.PinThread(r.cpu)
		if err != nil {
			return err
		}
		defer unpin()
		if err := command.Start(); err != nil {
			return err
		}
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		limit.Cur = limit.Max
		return unix.Prlimit(command.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil)
	})
}

// startProcess starts a checker program and waits until it is ready for orders.
func (r *healthRig) startProcess(ctx context.Context, program string, args ...string) (runner, error) {
	p := &process{command: exec.CommandContext(ctx, program, args...)}
	p.command.Stderr = &p.said
	p.command.Env = append(os.Environ(), "GOTRACEBACK=single")
	var err error
	if p.orders, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = json.NewDecoder(out)
	if err := r.start(p.command); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	if _, err := p.answer(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// answerWithin bounds the wait for a response.
const answerWithin = 5 * time.Minute

// answer waits for the next response. It kills a process that does not respond.
func (p *process) answer() (t checker.Tally, err error) {
	stop := time.AfterFunc(answerWithin, func() { _ = p.command.Process.Kill() })
	defer stop.Stop()
	if err := p.answers.Decode(&t); err != nil {
		return t, fmt.Errorf("checker: no answer: %w: %s", err, strings.TrimSpace(p.said.String()))
	}
	return t, nil
}

func (p *process) order(text string) (checker.Tally, error) {
	if _, err := io.WriteString(p.orders, text+"\n"); err != nil {
		_ = p.command.Wait() // after the end its standard error is complete
		return checker.Tally{}, fmt.Errorf("checker: order %s: %w: %s", text, err, strings.TrimSpace(p.said.String()))
	}
	return p.answer()
}

func (p *process) once() (checker.Tally, error) { return p.order(checker.OrderOnce) }

func (p *process) prepare() error {
	_, err := p.order(checker.OrderPrepare)
	return err
}

func (p *process) steady() error {
	_, err := p.order(checker.OrderSteady)
	return err
}

func (p *process) report(order string) (checker.Tally, error) { return p.order(order) }

func (p *process) spent() (time.Duration, error) { return processTime(p.command.Process.Pid) }

// endWithin is how long a checker may take to exit after its input ended.
const endWithin = 5 * time.Second

// close ends the orders and waits. It kills a process that does not exit.
func (p *process) close() error {
	_ = p.orders.Close()
	stop := time.AfterFunc(endWithin, func() { _ = p.command.Process.Kill() })
	defer stop.Stop()
	_ = p.command.Wait()
	return nil
}

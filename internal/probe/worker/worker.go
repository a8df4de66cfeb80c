// Package worker probes by goroutines the checks that need libraries: TLS, HTTP/2, bodies of
// answers, gRPC's health service and programs. It can also probe TCP and plain HTTP, which sockets
// do at a lower cost, for when no other prober can.
package worker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

const (
	// maxAsking bounds the concurrent network probes. Each holds one descriptor and, with TLS, at
	// most about 64 KiB (records of 16 KiB each way, their certificates, two stacks). One with a
	// body holds 64 KiB more: 128 MiB in all. While every server hangs for the default timeout of
	// 500 ms, 1,024 / 0.5 s = 2,048 probes still begin each second.
	maxAsking = 1024
	// maxPrograms bounds the concurrent programs. Each is a process, two descriptors and a thread
	// here that waits for it. It takes this executable's start of about 10 ms before its own work:
	// 32 begin within 160 ms on two cores.
	maxPrograms = 32
)

// Options are the settings and callbacks of an Asker.
type Options struct {
	// Clock measures how long probes took and is used to verify certificates. Timeouts use the
	// machine's own clock.
	Clock clock.Clock
	// Report receives every answer once, from any goroutine. It owns the slice until it returns. It
	// must not call Close.
	Report func([]probe.Answer)
	// Programs is the directory that programs of external checks must be in, or below. With it,
	// main must begin with Child. Empty: there are no external checks.
	Programs string
	// User is the user that programs run as. It must not be root, and should own nothing and have
	// no other purpose.
	User User
}

// Asker implements probe.Asker. Probes above the concurrency limit wait in the order of the
// requests. The timeout of each begins when it starts.
type Asker struct {
	means   means
	ctx     context.Context
	cancel  context.CancelFunc
	wait    sync.WaitGroup
	answers outbox

	mu     sync.Mutex
	closed bool
	// targets by number. checks are their checks, each with the number of targets that use it.
	targets map[uint32]*target
	checks  map[unique.Handle[lb.Check]]*check
	// network and external are separate, so that programs that hang delay no network probe.
	network, external lane

	starved atomic.Uint64
}

var (
	_ probe.Asker   = (*Asker)(nil)
	_ probe.Counter = (*Asker)(nil)
)

// target is an address with its prepared check.
type target struct {
	*check
	key     unique.Handle[lb.Check]
	address netip.AddrPort
	// removed: the target is no longer wanted.
	removed bool
}

// New returns a prober without targets.
func New(o Options) (*Asker, error) {
	a := &Asker{
		means: means{clock: o.Clock, dial: dial}, targets: map[uint32]*target{}, checks: map[unique.Handle[lb.Check]]*check{},
		network: lane{limit: maxAsking}, external: lane{limit: maxPrograms},
	}
	a.answers.report = o.Report
	if o.Programs != "" {
		d, err := openDirectory(o.Programs, o.User)
		if err != nil {
			return nil, err
		}
		a.means.programs = d
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a, nil
}

// Add implements probe.Asker.
func (a *Asker) Add(id uint32, t probe.Target) error {
	if err := validate(t); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return errors.New("add target: the asker is closed")
	}
	if a.targets[id] != nil {
		panic(fmt.Sprintf("add target %v: its number %d is taken", t.Address, id))
	}
	c := a.checks[t.Check]
	if c == nil {
		var err error
		if c, err = prepare(t.Check.Value(), &a.means); err != nil {
			return err
		}
		a.checks[t.Check] = c
	}
	c.targets++
	a.targets[id] = &target{check: c, key: t.Check, address: t.Address}
	return nil
}

// Remove implements probe.Asker. A probe that waits for its turn is answered Void without being
// made.
func (a *Asker) Remove(id uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.targets[id]
	if t == nil {
		return
	}
	delete(a.targets, id)
	t.removed = true
	if t.targets--; t.targets == 0 {
		delete(a.checks, t.key)
	}
}

// Ask implements probe.Asker. An unknown number is answered Void.
func (a *Asker) Ask(ids []uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	for _, id := range ids {
		t := a.targets[id]
		l := &a.network
		if t != nil && t.Kind == lb.CheckExternal {
			l = &a.external
		}
		if l.push(turn{id, t}) {
			a.wait.Go(func() { a.work(l) })
		}
	}
}

// Close implements probe.Asker. Running probes are aborted and not answered.
func (a *Asker) Close() error {
	a.mu.Lock()
	again := a.closed
	a.closed = true
	a.mu.Unlock()
	a.cancel()
	a.wait.Wait()
	if a.means.programs != nil && !again {
		a.means.programs.close()
	}
	return nil
}

// Met implements probe.Counter.
func (a *Asker) Met() probe.Met {
	m := probe.Met{Starved: a.starved.Load()}
	if a.means.programs != nil {
		m.Stuck = int(a.means.programs.stuck.Load())
	}
	return m
}

// work makes the probes of a lane one after the other until none waits.
func (a *Asker) work(l *lane) {
	for {
		a.mu.Lock()
		next, ok := l.pop(a.closed)
		wanted := ok && next.target != nil && !next.target.removed
		a.mu.Unlock()
		if !ok {
			return
		}
		answer := probe.Answer{ID: next.id, Verdict: probe.Void, Words: "not wanted any more"}
		if wanted {
			answer = a.ask(next)
		}
		if a.ctx.Err() != nil {
			continue
		}
		a.answers.put(answer)
	}
}

// ask makes one probe.
func (a *Asker) ask(next turn) probe.Answer {
	begin := a.means.clock.Now()
	ctx, cancel := context.WithTimeout(a.ctx, next.target.Timeout)
	defer cancel()
	f := next.target.ask(ctx)
	if f.starved {
		a.starved.Add(1)
	}
	return probe.Answer{ID: next.id, Verdict: f.verdict, Silent: f.silent, Words: clean(f.words), Took: a.means.clock.Now().Sub(begin)}
}

// ask makes one probe, within ctx.
func (t *target) ask(ctx context.Context) finding {
	switch t.Kind {
	case lb.CheckExternal:
		return t.run(ctx)
	case lb.CheckTCP:
		return t.askTCP(ctx)
	case lb.CheckGRPC:
		return t.askGRPC(ctx)
	}
	return t.askHTTP(ctx)
}

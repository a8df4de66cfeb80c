// Package worker asks by goroutines what needs libraries: TLS, HTTP/2, the bodies of answers, gRPC's health service and programs.
// It can ask what sockets ask more cheaply too, TCP and plain HTTP, for when nobody else can.
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
	// maxAsking bounds the probes over the network at once. Each holds one descriptor and, with TLS, at most about 64 KiB (records
	// of 16 KiB each way, their certificates, two stacks), one with a body 64 KiB more: 128 MiB. While every server hangs for the
	// default timeout of 500 ms, 1,024 / 0.5 s = 2,048 are still asked each second.
	maxAsking = 1024
	// maxPrograms bounds the programs at once. Each is a process, two descriptors and a thread here that waits for it, and takes
	// this executable's start of about 10 ms before its own work: 32 begin within 160 ms on two cores.
	maxPrograms = 32
)

// Options are what an Asker needs from outside.
type Options struct {
	// Clock tells how long probes took and whether certificates are valid; timeouts are the machine's own.
	Clock clock.Clock
	// Report gets every answer, once, from any goroutine; the slice is the receiver's until it returns. It must not call Close.
	Report func([]probe.Answer)
	// Programs is the directory that programs of external checks must be in, or below; then main must begin with Child. Empty: there
	// are no external checks.
	Programs string
	// User is whom programs run as: not root; best somebody who owns nothing and does nothing else.
	User User
}

// Asker implements probe.Asker. Probes beyond what is asked at once wait in the order of asking; the timeout of each
// begins when it is its turn.
type Asker struct {
	means   means
	ctx     context.Context
	cancel  context.CancelFunc
	wait    sync.WaitGroup
	answers outbox

	mu     sync.Mutex
	closed bool
	// targets by number. checks are what they are asked, with how many targets ask it.
	targets map[uint32]*target
	checks  map[unique.Handle[lb.Check]]*check
	// network and external are apart, so that programs that hang keep nobody else waiting.
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
	// removed: nobody wants to know any more.
	removed bool
}

// New makes an asker that knows no target.
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

// Remove implements probe.Asker. A probe that waits for its turn is answered without being made.
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

// Ask implements probe.Asker. A number that is unknown is answered Void.
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

// Close implements probe.Asker. Probes under way are broken off and not answered.
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

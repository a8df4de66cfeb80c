package packet

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	crand "crypto/rand"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/probe"
)

// Asker implements probe.Asker. In addition to its methods it needs the ways to servers
// (HopsChanged), and for tunnels their sources (SetTunnelSources). It is safe for concurrent use.
//
// Verdict Unsure means that packets cannot decide:
//
//   - there is no way by an interface of the mux;
//   - a next hop has not answered for a while;
//   - a server is silent that never answered by packets, or that did so until now, because its
//     answers may take another interface;
//   - the answer does not begin with a complete, final status line.
//
// At most maxDoubts servers that fell silent are Unsure at a time, each for as long as other
// probers then probe it (probe.PacketsRest). Above that, silence is Bad immediately. The same bound
// holds for next hops, each for a timeout. While no way is known yet, the verdict is Void.
type Asker struct {
	options Options
	wake    chan struct{}
	ended   chan struct{}

	mu     sync.Mutex
	core   core
	closed bool
}

var _ probe.Asker = (*Asker)(nil)

// New returns a prober without targets, and starts its goroutine.
func New(o Options) (*Asker, error) {
	switch {
	case o.Tables == nil || o.Sender == nil || o.Report == nil:
		return nil, errors.New("packet prober: needs tables, a sender and somebody to report to")
	case o.Window < 0:
		return nil, errors.New("packet prober: window: must be above 0")
	}
	if o.Window == 0 {
		o.Window = DefaultWindow
	}
	if o.Now == nil {
		o.Now = monotonic
	}
	if o.Random == nil {
		var seed [32]byte
		crand.Read(seed[:])
		o.Random = rand.NewChaCha8(seed).Uint64
	}
	a := &Asker{options: o, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	a.core = newCore(o)
	if opener, ok := o.Tables.(dataplane.BurstOpener); ok {
		a.core.bursts = newBursts(opener.OpenBurst, o.Say)
	}
	a.core.wheel.now = o.Now() / millisecond
	go a.run()
	return a, nil
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("read the monotonic clock: " + err.Error())
	}
	return t.Nano()
}

// Add implements probe.Asker.
func (a *Asker) Add(id uint32, t probe.Target) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return errors.New("packet prober: closed")
	}
	err := a.core.add(id, t)
	if a.core.moved {
		a.poke()
	}
	return err
}

// Remove implements probe.Asker.
func (a *Asker) Remove(id uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.core.remove(id)
		a.poke()
	}
}

// Ask implements probe.Asker.
func (a *Asker) Ask(ids []uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.core.ask(ids, a.options.Now())
		a.poke()
	}
}

// HopsChanged sets the ways to the destinations that Want received last. Probes of destinations
// without a way wait for half of their timeout, and are then Void.
func (a *Asker) HopsChanged(ways netdev.Ways) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.core.hops(ways, a.options.Now())
		a.poke()
	}
}

// SetTunnelSources sets the tunnel sources of the mux's Network.
func (a *Asker) SetTunnelSources(sources []netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.core.tunnelSources(sources, a.options.Now())
		a.poke()
	}
}

// Close implements probe.Asker.
func (a *Asker) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		<-a.ended
		return nil
	}
	a.closed = true
	a.poke()
	a.mu.Unlock()
	<-a.ended
	a.mu.Lock()
	defer a.mu.Unlock()
	a.core.closeBursts()
	for id := range a.core.rules {
		if a.core.rules[id].placed {
			a.options.Tables.Remove(uint32(id))
		}
	}
	a.core.rules = nil
	return a.options.Sender.Close()
}

func (a *Asker) poke() {
	notify.Send(a.wake)
}

// run works until the prober is closed.
func (a *Asker) run() {
	defer close(a.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var spare []probe.Answer
	told := a.options.Now() - int64(settle)
	for {
		a.mu.Lock()
		if a.closed {
			a.mu.Unlock()
			return
		}
		now := a.options.Now()
		wait := a.core.step(now)
		answers := a.core.answers
		// While work is pending, gather answers into larger batches.
		if wait == 0 && len(answers) < gathered {
			answers = nil
		} else {
			a.core.answers = spare[:0]
		}
		var want []netip.Addr
		moved := a.core.moved
		if left := told + int64(settle) - now; moved && left > 0 {
			moved = false
			if wait < 0 || time.Duration(left) < wait {
				wait = max(time.Duration(left), time.Millisecond)
			}
		}
		if moved {
			want, a.core.moved, told = a.core.places.addresses(), false, now
		}
		a.mu.Unlock()
		if moved && a.options.Want != nil {
			slices.SortFunc(want, netip.Addr.Compare)
			a.options.Want(want)
		}
		if len(answers) > 0 {
			a.options.Report(answers)
		}
		if answers != nil {
			spare = answers
		}
		if cap(spare) > 4*gathered {
			spare = nil
		}
		switch {
		case wait == 0:
		case wait > 0 && wait < time.Millisecond:
			// Timers of the runtime have a resolution of a millisecond.
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(wait)}, nil)
		case wait < 0:
			<-a.wake
		default:
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-a.wake:
			}
		}
	}
}

// settle is the minimum time between two calls of Want, because many targets are added together.
const settle = 50 * time.Millisecond

// gathered is how many answers are reported together while work is pending.
const gathered = 1024

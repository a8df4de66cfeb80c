package probe

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// asker is a scripted Asker. It fails the test if the engine violates the contract of Asker.
type asker struct {
	t        *testing.T
	answered func([]Answer)
	// takes returns an error for targets that Add is to refuse; nil: accept all.
	takes func(Target) error
	// answer returns the answer to a probe and its delay; nil: no answer, until say is called.
	answer func(Target) (Answer, time.Duration)

	mu      sync.Mutex
	targets map[uint32]Target
	out     map[uint32]Target
	log     []asked
	closed  bool
}

// asked is one probe: its time since the test began, and its target.
type asked struct {
	at     time.Duration
	target Target
}

var epoch = time.Now()

func (a *asker) Add(id uint32, t Target) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, has := a.targets[id]; has {
		a.t.Errorf("number %d is added twice", id)
	}
	if _, out := a.out[id]; out {
		a.t.Errorf("number %d is used again before its answer", id)
	}
	if a.takes != nil {
		if err := a.takes(t); err != nil {
			return err
		}
	}
	a.targets[id] = t
	return nil
}

func (a *asker) Remove(id uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, has := a.targets[id]; !has {
		a.t.Errorf("number %d is removed, and was not there", id)
	}
	delete(a.targets, id)
}

func (a *asker) Ask(ids []uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range ids {
		t, has := a.targets[id]
		if _, out := a.out[id]; out || !has {
			a.t.Errorf("number %d is asked: known %v, under way %v", id, has, out)
		}
		a.out[id] = t
		a.log = append(a.log, asked{time.Since(epoch), t})
		if a.answer != nil {
			answer, after := a.answer(t)
			answer.Took = after
			time.AfterFunc(after, func() { a.say(id, answer) })
		}
	}
}

// say delivers an answer.
func (a *asker) say(id uint32, answer Answer) {
	a.mu.Lock()
	answer.ID = id
	_, out := a.out[id]
	delete(a.out, id)
	closed := a.closed
	a.mu.Unlock()
	if !out {
		a.t.Errorf("number %d was not asked", id)
	}
	if !closed {
		a.answered([]Answer{answer})
	}
}

func (a *asker) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return nil
}

// says changes answer.
func (a *asker) says(answer func(Target) (Answer, time.Duration)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// known returns how many targets it has.
func (a *asker) known() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.targets)
}

// take returns the probes since the last call.
func (a *asker) take() []asked {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.log
	a.log = nil
	return out
}

// rig is an engine with scripted probers.
type rig struct {
	*Engine
	askers  []*asker
	mu      sync.Mutex
	random  func() float64
	results []Result
	batches []int
}

func (r *rig) report(results []Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, results...)
	r.batches = append(r.batches, len(results))
}

// take returns the results since the last call.
func (r *rig) take() []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.results
	r.results, r.batches = nil, nil
	return out
}

// newRig returns an engine in a synctest bubble, with a packet prober first if there are two.
func newRig(t *testing.T, askers ...*asker) *rig {
	t.Helper()
	epoch = time.Now()
	r := &rig{askers: askers, random: func() float64 { return 0.5 }}
	var all []Means
	for i, a := range askers {
		a.t, a.targets, a.out = t, map[uint32]Target{}, map[uint32]Target{}
		all = append(all, Means{Name: fmt.Sprint("means", i), Packets: i == 0 && len(askers) > 1, New: func(answered func([]Answer)) (Asker, error) {
			a.answered = answered
			return a, nil
		}})
	}
	e, err := New(Options{Clock: clock.System{}, Random: func() float64 { r.mu.Lock(); defer r.mu.Unlock(); return r.random() }, Report: r.report, Means: all})
	if err != nil {
		t.Fatal(err)
	}
	r.Engine = e
	t.Cleanup(e.Close)
	return r
}

// after returns an answer that arrives after d.
func after(v Verdict, d time.Duration) func(Target) (Answer, time.Duration) {
	return func(Target) (Answer, time.Duration) { return Answer{Verdict: v, Words: fmt.Sprint("verdict ", v)}, d }
}

func checkOf(change func(*lb.Check)) lb.Check {
	c := lb.Check{Kind: lb.CheckTCP, Interval: time.Second, Timeout: 500 * time.Millisecond}
	c.SetDefaults()
	c.Jitter = 0
	if change != nil {
		change(&c)
	}
	return c
}

// targetsOf returns n targets of a check.
func targetsOf(n int, c lb.Check) []Target {
	out := make([]Target, n)
	for i := range out {
		out[i] = Of(c, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
	}
	return out
}

// pass lets d pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func set(t *testing.T, e *Engine, targets []Target) {
	t.Helper()
	if err := e.Set(targets); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// onTick checks that probes began when planned, up to two ticks late.
func onTick(t *testing.T, got []asked, want ...time.Duration) {
	t.Helper()
	var times []time.Duration
	for _, a := range got {
		times = append(times, a.at)
	}
	if len(times) != len(want) {
		t.Fatalf("asked at %v, want %v", times, want)
	}
	for i, at := range times {
		if at < want[i] || at > want[i]+2*tick {
			t.Fatalf("asked at %v, want %v", times, want)
		}
	}
}

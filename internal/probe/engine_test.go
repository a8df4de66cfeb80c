package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// asker is one that says what it is told to. It fails the test when it is asked what no Asker may be.
type asker struct {
	t        *testing.T
	answered func([]Answer)
	// takes tells whether it can ask a target; nil: all.
	takes func(Target) error
	// answer is what it says, after a while; nil: nothing, until say.
	answer func(Target) (Answer, time.Duration)

	mu      sync.Mutex
	targets map[uint32]Target
	out     map[uint32]Target
	log     []asked
	closed  bool
}

// asked is a probe: when since the test began, and of what.
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

// say answers.
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

// says changes what it answers.
func (a *asker) says(answer func(Target) (Answer, time.Duration)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// known is how many targets it has.
func (a *asker) known() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.targets)
}

// take returns what was asked since it was called last.
func (a *asker) take() []asked {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.log
	a.log = nil
	return out
}

// rig is an engine with askers that are fakes.
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

// take returns what was reported since it was called last.
func (r *rig) take() []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.results
	r.results, r.batches = nil, nil
	return out
}

// newRig makes an engine in a bubble, with a packet asker first when there are two.
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

// after is an answer that comes so late.
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

// targetsOf are n targets of a check.
func targetsOf(n int, c lb.Check) []Target {
	out := make([]Target, n)
	for i := range out {
		out[i] = Of(c, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
	}
	return out
}

// pass lets time pass.
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

// onTick compares times of probes with a plan, to a tick.
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

// TestScheduleKeepsToItsPlan: at once, again within the interval, then once an interval, however long answers take.
func TestScheduleKeepsToItsPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, 77*time.Millisecond)}
		r := newRig(t, a)
		one := targetsOf(1, checkOf(nil))
		set(t, r.Engine, slices.Concat(one, one, one))
		pass(4700 * time.Millisecond)
		const ms = time.Millisecond
		onTick(t, a.take(), 0, 500*ms, 1500*ms, 2500*ms, 3500*ms, 4500*ms)
		results := r.take()
		if len(results) != 6 || !results[0].Good || results[0].Target != one[0] || results[0].Took != 77*ms || results[0].Words != "verdict 1" ||
			!results[0].At.Equal(epoch) {
			t.Errorf("reported %+v", results)
		}
		if s := r.Stats(); s.Targets != 1 || s.Good != 6 || s.Late != 0 || s.Means[0].Asked != 6 || s.Start.Quantile(1) > 3*ms || s.Took.Quantile(0.5) != 100*ms {
			t.Errorf("stats %+v", s)
		}
		set(t, r.Engine, nil)
		pass(time.Hour)
		if got := a.take(); len(got) != 0 || len(r.take()) != 0 || a.known() != 0 {
			t.Errorf("a target that is gone is asked: %v", got)
		}
	})
}

// TestNobodyIsAskedTwice: a target waits for its answer, is then asked at once, and its plan holds on.
func TestNobodyIsAskedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{}
		r := newRig(t, a)
		set(t, r.Engine, targetsOf(1, checkOf(nil)))
		pass(3700 * time.Millisecond)
		a.say(0, Answer{Verdict: Good, Took: 3700 * time.Millisecond})
		pass(100 * time.Millisecond)
		a.say(0, Answer{Verdict: Good, Took: 100 * time.Millisecond})
		pass(time.Second)
		const ms = time.Millisecond
		onTick(t, a.take(), 0, 3700*ms, 4500*ms)
		if s := r.Stats(); s.Late != 3 {
			t.Errorf("%d probes were late, want those of 0.5, 1.5 and 2.5 s", s.Late)
		}
	})
}

// TestUnsureIsAskedBySockets: at once, and packets are left alone for a while.
func TestUnsureIsAskedBySockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packets, sockets := &asker{answer: after(Unsure, 10*time.Millisecond)}, &asker{answer: after(Bad, 10*time.Millisecond)}
		r := newRig(t, packets, sockets)
		set(t, r.Engine, targetsOf(1, checkOf(nil)))
		pass(50 * time.Millisecond)
		onTick(t, packets.take(), 0)
		onTick(t, sockets.take(), 10*time.Millisecond)
		if results := r.take(); len(results) != 1 || results[0].Good || results[0].Void {
			t.Fatalf("reported %+v", results)
		}
		pass(packetsRest - time.Second)
		if got := packets.take(); len(got) != 0 {
			t.Fatalf("packets asked at %v", got)
		}
		if packets.known() != 0 || sockets.known() != 1 {
			t.Errorf("packets know %d targets, sockets %d", packets.known(), sockets.known())
		}
		packets.says(after(Good, 10*time.Millisecond))
		pass(3 * time.Second)
		sockets.take()
		r.take()
		pass(3 * time.Second)
		if p, s := packets.take(), sockets.take(); len(p) < 3 || len(s) != 0 {
			t.Errorf("packets asked %d times, sockets %d", len(p), len(s))
		}
		if s := r.Stats(); s.Unsure != 1 || s.Bad == 0 || s.Means[0].Targets != 1 || s.Means[1].Targets != 0 || s.Void != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestUnsureWithoutSocketsIsVoid: what only packets can ask has no verdict of theirs, and is asked again.
func TestUnsureWithoutSocketsIsVoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packets := &asker{answer: after(Unsure, time.Millisecond)}
		sockets := &asker{takes: func(Target) error { return errors.New("no") }}
		r := newRig(t, packets, sockets)
		set(t, r.Engine, targetsOf(1, checkOf(nil)))
		pass(3 * time.Second)
		if results := r.take(); len(results) < 3 || !results[0].Void || results[0].Words != "packets could not decide it, and sockets cannot ask it" {
			t.Errorf("reported %+v", results)
		}
		if len(packets.take()) < 3 || packets.known() != 1 {
			t.Error("packets gave up")
		}
	})
}

// TestVoidIsAskedAgainSoon.
func TestVoidIsAskedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Void, 0)}
		r := newRig(t, a)
		set(t, r.Engine, targetsOf(1, checkOf(func(c *lb.Check) { c.Interval = time.Hour })))
		pass(2 * time.Second)
		const ms = time.Millisecond
		onTick(t, a.take(), 0, 750*ms, 1500*ms)
		if results := r.take(); len(results) != 3 || !results[0].Void || results[0].Good {
			t.Errorf("reported %+v", results)
		}
	})
}

// TestFastWhileResultsChange: until rise or fall results in a row agree.
func TestFastWhileResultsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, 0)}
		r := newRig(t, a)
		const ms = time.Millisecond
		set(t, r.Engine, targetsOf(1, checkOf(func(c *lb.Check) { c.Interval, c.Fast, c.Rise, c.Fall = 10*time.Second, 100*ms, 2, 3 })))
		pass(6 * time.Second)
		onTick(t, a.take(), 0, 5000*ms)
		a.says(after(Bad, 0))
		pass(20 * time.Second)
		onTick(t, a.take(), 15_000*ms, 15_100*ms, 15_200*ms, 25_200*ms)
		a.says(after(Good, 0))
		pass(20 * time.Second)
		onTick(t, a.take(), 35_200*ms, 35_300*ms, 45_300*ms)
	})
}

// TestStartIsPaced: no tick begins more than it may, those that are due go first, and what was known before is spread.
func TestStartIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, time.Millisecond)}
		r := newRig(t, a)
		c := checkOf(func(c *lb.Check) { c.Interval = 5 * time.Second })
		targets := targetsOf(3*maxPerTick+10, c)
		set(t, r.Engine, targets)
		pass(100 * time.Millisecond)
		per := map[time.Duration]int{}
		for _, p := range a.take() {
			per[p.at]++
		}
		if len(per) < 4 {
			t.Errorf("begun at %v", per)
		}
		for at, n := range per {
			if n > maxPerTick {
				t.Errorf("%d begin at %v", n, at)
			}
		}
		if n := len(r.take()); n != len(targets) {
			t.Errorf("%d results of %d", n, len(targets))
		}
		set(t, r.Engine, nil)
		i := 0
		r.mu.Lock()
		r.random = func() float64 { i++; return float64(i%100) / 100 }
		r.mu.Unlock()
		if err := r.Resume(targets[:1000]); err != nil {
			t.Fatal(err)
		}
		set(t, r.Engine, targets[:1000])
		begun := time.Since(epoch)
		pass(4999 * time.Millisecond)
		seen, slots := map[Target]bool{}, [10]int{}
		for _, p := range a.take() {
			seen[p.target] = true
			slots[min(9, (p.at-begun)/(500*time.Millisecond))]++
		}
		if len(seen) != 1000 || slices.Min(slots[:]) < 50 {
			t.Errorf("%d were asked, in tenths of the interval: %v", len(seen), slots)
		}
	})
}

// TestManyAnswersAreOneReport: what comes together is reported together, and what is alone is not held back.
func TestManyAnswersAreOneReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Bad, 500*time.Millisecond)}
		r := newRig(t, a)
		set(t, r.Engine, targetsOf(1000, checkOf(nil)))
		pass(503 * time.Millisecond)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.results) != 1000 || len(r.batches) > 3 {
			t.Errorf("%d results in batches of %v", len(r.results), r.batches)
		}
	})
}

// TestNumbersAreUsedAgainAfterTheirAnswer: the asker watches; targets come and go while they are asked.
func TestNumbersAreUsedAgainAfterTheirAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packets, sockets := &asker{answer: after(Unsure, 300*time.Millisecond)}, &asker{answer: after(Good, 300*time.Millisecond)}
		r := newRig(t, packets, sockets)
		all := targetsOf(40, checkOf(nil))
		for i := range 200 {
			at := i * 7 % 30
			if err := r.Change(all[at:at+10], all[(at+15)%30:(at+15)%30+10]); err != nil {
				t.Fatal(err)
			}
			pass(time.Duration(i%5) * 50 * time.Millisecond)
		}
		set(t, r.Engine, nil)
		pass(time.Second)
		s := r.Stats()
		if packets.known()+sockets.known()+len(r.table.paces) != 0 || s.Out != 0 || s.Targets != 0 || s.Means[0].Targets != 0 || s.Means[1].Targets != 0 {
			t.Errorf("packets know %d, sockets %d, stats %+v", packets.known(), sockets.known(), s)
		}
		if len(r.table.unused) != len(r.table.rules) || len(r.table.rules) > 80 {
			t.Errorf("%d numbers of %d are free", len(r.table.unused), len(r.table.rules))
		}
		r.take()
		set(t, r.Engine, all)
		pass(2 * time.Second)
		seen := map[Target]bool{}
		for _, result := range r.take() {
			seen[result.Target] = true
		}
		if len(seen) != len(all) {
			t.Errorf("%d of %d are probed", len(seen), len(all))
		}
	})
}

// TestStoppedMachineBlamesNobody: probes that were under way while the agent was stopped came to an end without its part of the
// conversation. They say nothing of servers, unless good, and are made again soon.
func TestStoppedMachineBlamesNobody(t *testing.T) {
	for _, c := range []struct {
		verdict Verdict
		took    time.Duration
		void    bool
	}{
		{Bad, time.Minute, true}, {Bad, 1500 * time.Millisecond, true}, {Bad, 1499 * time.Millisecond, false}, {Bad, 500 * time.Millisecond, false},
		{Good, time.Minute, false},
	} {
		t.Run(fmt.Sprintf("%d after %v", c.verdict, c.took), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &asker{}
				r := newRig(t, a)
				set(t, r.Engine, targetsOf(1, checkOf(nil)))
				pass(c.took)
				a.take()
				a.say(0, Answer{Verdict: c.verdict, Silent: true, Words: "no bytes", Took: c.took})
				pass(100 * time.Millisecond)
				got := r.take()
				if len(got) != 1 || got[0].Void != c.void || got[0].Good != (c.verdict == Good) || got[0].Silent != (c.verdict == Bad && !c.void) {
					t.Fatalf("results are %+v", got)
				}
				pass(900 * time.Millisecond)
				if again := len(a.take()); c.void && again != 1 {
					t.Errorf("asked %d times within a second", again)
				}
			})
		})
	}
}

// TestStopOfOneTwice: a target that is named twice among those to stop ends once.
func TestStopOfOneTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{answer: after(Good, time.Millisecond)}
		r := newRig(t, a)
		both := targetsOf(2, checkOf(nil))
		set(t, r.Engine, both)
		pass(100 * time.Millisecond)
		if err := r.Change(nil, []Target{both[0], both[0]}); err != nil {
			t.Fatal(err)
		}
		if s := r.Stats(); s.Targets != 1 || s.Means[0].Targets != 1 || a.known() != 1 {
			t.Errorf("%d targets are left, the asker knows %d", s.Targets, a.known())
		}
	})
}

// TestCandidates: the check's choice goes before the order, and packets that failed are none.
func TestCandidates(t *testing.T) {
	all := []Means{{Name: "loop"}, {Name: "packet", Packets: true}, {Name: "worker"}}
	for _, c := range []struct {
		engine string
		failed bool
		want   []int
	}{
		{"", false, []int{0, 1, 2}}, {"", true, []int{0, 2}},
		{lb.EngineSocket, false, []int{0, 2}}, {lb.EngineSocket, true, []int{0, 2}},
		{lb.EnginePacket, false, []int{1, 0, 2}}, {lb.EnginePacket, true, []int{0, 2}},
	} {
		if got := candidates(all, c.engine, c.failed); !slices.Equal(got, c.want) {
			t.Errorf("engine %q, packets failed %v: got %v, want %v", c.engine, c.failed, got, c.want)
		}
	}
}

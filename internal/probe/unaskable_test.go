package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// starver is a prober with fixed counters.
type starver struct {
	*asker
	n uint64
}

func (s starver) Met() Met { return Met{Starved: s.n, Again: 1, Unproven: 2, Stuck: 3} }

func kindOf(kind string) lb.Check { return checkOf(func(c *lb.Check) { c.Kind = kind }) }

// TestUnaskableIsNeverAsked checks a target that no prober accepts. It is reported once when set
// and once after each change, delays no other target, and is probed once a prober accepts it.
func TestUnaskableIsNeverAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var room atomic.Bool
		a := &asker{answer: after(Good, 0), takes: func(t Target) error {
			if t.Check.Value().Kind != lb.CheckTCP && !room.Load() {
				return errors.New("no room")
			}
			return nil
		}}
		r := newRig(t, a)
		fine, other := targetsOf(1, checkOf(nil))[0], Of(kindOf(lb.CheckExternal), netip.MustParseAddr("10.0.0.1"), 80)
		// told checks that the results of other since the last call are want in number and alike.
		told := func(what string, want int, void bool) {
			t.Helper()
			n := 0
			for _, x := range r.take() {
				if x.Target != other {
					continue
				}
				n++
				if x.Void != void || x.Unaskable != void || x.Good == void || void && x.Words != "cannot be asked here: no room" {
					t.Errorf("%s: %+v", what, x)
				}
			}
			if n != want {
				t.Errorf("%s: told %d times, want %d", what, n, want)
			}
		}
		targets := func(what string, asked, unaskable int) {
			t.Helper()
			if s := r.Stats(); s.Targets != asked || s.Unaskable != unaskable || s.Means[0].Targets != asked {
				t.Errorf("%s: stats %+v", what, s)
			}
		}
		set(t, r.Engine, []Target{other, fine})
		targets("set", 1, 1)
		pass(10 * time.Minute)
		told("set", 1, true)
		if s := r.Stats(); s.Good < 590 || s.Late != 0 || s.Why != "10.0.0.1:80: no room" {
			t.Errorf("what can be asked: %+v", s)
		}
		set(t, r.Engine, []Target{other, fine})
		pass(10 * time.Minute)
		told("set again", 1, true)
		if err := r.Change(targetsOf(2, checkOf(nil))[1:], nil); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Minute)
		told("another came", 1, true)
		targets("another came", 2, 1)

		room.Store(true)
		pass(offerAgain + 5*time.Second)
		targets("there is room", 3, 0)
		if n := len(r.take()); n == 0 {
			t.Error("nothing is asked")
		}
		pass(10 * time.Second)
		told("there is room", 10, false)
		if err := r.Change(nil, []Target{other}); err != nil {
			t.Fatal(err)
		}
		room.Store(false)
		r.take()
		if err := r.Change([]Target{other}, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		told("it came again", 1, true)
		room.Store(true)
		if err := r.Change([]Target{other}, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		told("it was wanted again", 1, false)
		room.Store(false)
		set(t, r.Engine, nil)
		targets("nothing", 0, 0)
		set(t, r.Engine, []Target{other})
		set(t, r.Engine, nil)
		targets("nothing again", 0, 0)
		pass(time.Hour)
		if a.known() != 0 {
			t.Error("the asker knows what is gone")
		}
	})
}

// TestManyUnaskable checks that unsupported targets are offered again in their turn, even if the
// targets change meanwhile.
func TestManyUnaskable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var room atomic.Bool
		a := &asker{answer: after(Good, 0), takes: func(Target) error {
			if !room.Load() {
				return errors.New("no room")
			}
			return nil
		}}
		r := newRig(t, a)
		r.mu.Lock()
		r.random = func() float64 { return 0 } // all in the same tick
		r.mu.Unlock()
		const n = 3 * maxPerTick
		all := targetsOf(n, checkOf(nil))
		set(t, r.Engine, all)
		pass(offerAgain/2 + tick) // the offers of some are due and still wait
		room.Store(true)
		set(t, r.Engine, all[1:])
		pass(offerAgain)
		if s := r.Stats(); s.Targets != n-1 || s.Unaskable != 0 || a.known() != n-1 {
			t.Errorf("stats %+v, the asker knows %d", s, a.known())
		}
	})
}

// TestInvalidIsUnaskable checks that invalid targets do not affect valid ones.
func TestInvalidIsUnaskable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &asker{answer: after(Good, 0)})
		never := checkOf(func(c *lb.Check) { c.Interval = 0 })
		set(t, r.Engine, append(targetsOf(2, never), Of(checkOf(nil), netip.MustParseAddr("10.0.0.2"), 0), targetsOf(1, checkOf(nil))[0]))
		pass(5 * time.Minute)
		if s := r.Stats(); s.Unaskable != 3 || s.Targets != 1 || s.Good < 290 {
			t.Errorf("stats %+v", s)
		}
		if err := r.Set([]Target{{}}); err == nil {
			t.Error("a target without a check is taken")
		}
		r.Close()
		if err := r.Change(targetsOf(3, checkOf(nil))[2:], nil); err == nil {
			t.Error("a closed engine probes")
		}
	})
}

// TestWhyIsOfWhomItConcerns checks that the reason is that of packets for a target with a tunnel,
// and that of sockets otherwise.
func TestWhyIsOfWhomItConcerns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		no := func(words string, of error) func(Target) error {
			return func(Target) error { return fmt.Errorf("%s: %w", words, of) }
		}
		r := newRig(t, &asker{takes: no("packets", errors.New("no"))}, &asker{takes: no("loop", errors.ErrUnsupported)}, &asker{takes: no("worker", errors.New("no"))})
		c := checkOf(func(c *lb.Check) { c.Through = lb.ThroughTunnel })
		dip, vip := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.10")
		prepared := Prepare(c)
		tunnel := prepared.Wanted(dip, 80, Way{
			Endpoint: lb.EndpointKey{VIP: vip, Protocol: lb.TCP, Port: 80}, Outer: dip, Encap: lb.EncapIPIP, Member: 1,
		})
		direct := targetsOf(1, checkOf(nil))[0]
		set(t, r.Engine, []Target{tunnel, direct})
		for _, x := range r.take() {
			if want := map[Target]string{tunnel: "cannot be asked here: packets: no", direct: "cannot be asked here: worker: no"}[x.Target]; x.Words != want {
				t.Errorf("%q, want %q", x.Words, want)
			}
		}
	})
}

// TestMetIsOfAllAskers checks that Stats sums the counters of all probers.
func TestMetIsOfAllAskers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &asker{})
		r.askers[0].t = t
		r.Engine.askers = []Asker{starver{r.askers[0], 3}, r.askers[0], starver{r.askers[0], 4}}
		if got, want := r.Stats().Met, (Met{Starved: 7, Again: 2, Unproven: 4, Stuck: 6}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

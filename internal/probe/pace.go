package probe

import (
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// voidRetry is the longest that is waited after a probe that this machine could not make.
const voidRetry = time.Second

// slept is how late a probe that became due may be noticed before the machine counts as one that was stopped.
const slept = 10 * time.Second

// stalled is the least time by which an answer is noticed after its timeout for it to tell of this machine, not of the server.
const stalled = time.Second

// pace is when a check is asked, and by whom: what the schedule needs of an lb.Check, once for all targets with it.
type pace struct {
	check unique.Handle[lb.Check]

	interval, fast, timeout time.Duration

	jitter     float64 // share of the interval, to either side
	rise, fall uint32
	engine     string
	kind       int // of its check, in Stats.Kinds
	targets    int // that have it
}

func paceOf(c *lb.Check) *pace {
	p := &pace{interval: c.Interval, timeout: c.Timeout, jitter: float64(c.Jitter) / 100, rise: c.Rise, fall: c.Fall, engine: c.Engine, kind: kindPlace(c)}
	if c.Fast > 0 {
		p.fast = min(c.Fast, c.Interval)
	}
	return p
}

// paces are those by number, from 1 up, and by check. A number is used again when no target has it.
type paces struct {
	list   []*pace
	unused []uint32
	known  map[unique.Handle[lb.Check]]uint32
}

func newPaces() paces {
	return paces{list: make([]*pace, 1), known: map[unique.Handle[lb.Check]]uint32{}}
}

// hold counts one target more.
func (p *paces) hold(check unique.Handle[lb.Check]) uint32 {
	n, ok := p.known[check]
	if !ok {
		if free := len(p.unused); free > 0 {
			n, p.unused = p.unused[free-1], p.unused[:free-1]
		} else {
			n, p.list = uint32(len(p.list)), append(p.list, nil)
		}
		c := check.Value()
		p.list[n], p.known[check] = paceOf(&c), n
		p.list[n].check = check
	}
	p.list[n].targets++
	return n
}

// release undoes a hold.
func (p *paces) release(n uint32) {
	if p.list[n].targets--; p.list[n].targets == 0 {
		delete(p.known, p.list[n].check)
		p.list[n] = nil
		p.unused = append(p.unused, n)
	}
}

// run is what the latest results of a target say, for a check with Fast. The zero value is one that nobody asked: it counts as
// good, so that a first bad result is looked into fast.
type run struct {
	dead bool   // what results settled on
	odd  uint16 // how many in a row say otherwise
}

// settle takes a result in.
func (r *run) settle(p *pace, good bool) {
	if p.fast == 0 || good != r.dead {
		r.odd = 0
		return
	}
	if r.odd < 1<<16-1 {
		r.odd++
	}
	enough := p.fall
	if good {
		enough = p.rise
	}
	if uint32(r.odd) >= enough {
		r.dead, r.odd = !good, 0
	}
}

// after is when the next probe is planned, after one that was planned and answered at these times. It follows from the plan, so that
// load and slow answers do not shift the schedule; a plan that has passed is asked for at once. missed are the probes that it is too
// late for: more than an interval late. first: this was the first one. random is uniform in [0, 1).
func (p *pace) after(planned, answered time.Duration, r run, first, void bool, random float64) (plan time.Duration, missed uint64) {
	switch {
	case void:
		return answered + time.Duration(float64(min(p.interval, voidRetry))*(1+random)/2), 0
	case r.odd > 0:
		plan = planned + spread(p.fast, p.jitter, random)
	case first:
		plan = planned + health.Second(p.interval, random)
	default:
		plan = planned + spread(p.interval, p.jitter, random)
	}
	if behind := answered - plan; behind >= p.interval {
		missed = uint64(behind / p.interval)
		plan += time.Duration(missed) * p.interval
	}
	return plan, missed
}

// stoodStill tells whether a bad answer that took so long is none: who asks ends a probe at its timeout, unless this machine, or the
// agent, was stopped. Then its own part of the conversation came too late, too.
func (p *pace) stoodStill(took time.Duration) bool { return took-p.timeout >= max(p.timeout, stalled) }

// waken is the plan of a probe that becomes due now: its own, or when the machine was stopped since, the next of the same rhythm
// after now. So a machine that wakes does not ask everything at once.
func (p *pace) waken(planned, now time.Duration) (plan time.Duration, missed uint64) {
	late := now - planned
	if late < slept || late < p.interval {
		return planned, 0
	}
	missed = uint64(late/p.interval) + 1
	return planned + time.Duration(missed)*p.interval, missed
}

// spread varies a distance by a share of it to either side.
func spread(d time.Duration, share, random float64) time.Duration {
	return time.Duration(float64(d) * (1 + share*(2*random-1)))
}

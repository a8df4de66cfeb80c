package probe

import (
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// voidRetry is the longest wait after a probe that this machine could not make.
const voidRetry = time.Second

// slept is how late a due probe may be noticed before the machine counts as suspended in between.
const slept = 10 * time.Second

// stalled is the least delay of an answer past its timeout that is attributed to this machine, not
// to the server.
const stalled = time.Second

// pace is the schedule and engine of a check: the fields of an lb.Check that the schedule needs,
// once for all targets with it.
type pace struct {
	check unique.Handle[lb.Check]

	interval, fast, timeout time.Duration

	jitter     float64 // share of the interval, to either side
	rise, fall uint32
	engine     string
	kind       int // index of its check in Stats.Kinds
	targets    int // number of targets with it
}

func paceOf(c *lb.Check) *pace {
	p := &pace{interval: c.Interval, timeout: c.Timeout, jitter: float64(c.Jitter) / 100, rise: c.Rise, fall: c.Fall, engine: c.Engine, kind: kindPlace(c)}
	if c.Fast > 0 {
		p.fast = min(c.Fast, c.Interval)
	}
	return p
}

// paces holds paces by number, from 1 up, and by check. A number is reused when no target has it.
type paces struct {
	list   []*pace
	unused []uint32
	known  map[unique.Handle[lb.Check]]uint32
}

func newPaces() paces {
	return paces{list: make([]*pace, 1), known: map[unique.Handle[lb.Check]]uint32{}}
}

// hold returns the number of a check's pace and counts one more target.
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

// run summarizes the latest results of a target, for a check with Fast. The zero value is a target
// that was never probed. It counts as good, so that a first bad result is followed by fast probes.
type run struct {
	dead bool   // the settled state
	odd  uint16 // contradicting results in a row
}

// settle applies a result.
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

// after returns when the next probe is planned, given the plan and the answer time of the last. It
// adds to the plan, so that load and slow answers do not shift the schedule. A plan in the past is
// probed immediately. missed counts the probes that are skipped because they are more than an
// interval late. first: this was the first probe. random is uniform in [0, 1).
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

// stoodStill reports whether a bad answer that took this long is void. A prober ends a probe at its
// timeout, unless this machine or the agent was stopped. Then the prober's own packets were late
// too.
func (p *pace) stoodStill(took time.Duration) bool { return took-p.timeout >= max(p.timeout, stalled) }

// waken returns the plan of a probe that becomes due now: its own or, if the machine was suspended
// since, the next time of the same rhythm after now. So a machine that wakes does not probe
// everything immediately.
func (p *pace) waken(planned, now time.Duration) (plan time.Duration, missed uint64) {
	late := now - planned
	if late < slept || late < p.interval {
		return planned, 0
	}
	missed = uint64(late/p.interval) + 1
	return planned + time.Duration(missed)*p.interval, missed
}

// spread varies d by a share of it to either side.
func spread(d time.Duration, share, random float64) time.Duration {
	return time.Duration(float64(d) * (1 + share*(2*random-1)))
}

package packet

import (
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// flight is a probe of which a SYN was sent recently.
type flight struct {
	entry
	at int64
}

// lookYoung checks the probes of which a SYN was sent recently.
func (c *core) lookYoung(now int64) {
	keep := c.young[:0]
	for _, f := range c.young {
		r := &c.rules[f.id]
		if r.gen != f.gen || c.conclude(f.id, now) {
			continue
		}
		if now-f.at < int64(young) {
			keep = append(keep, f)
			continue
		}
		c.later(f.entry, now)
	}
	c.young = keep
}

// conclude queues the answer of a probe if the probe has ended, and reports whether it has.
func (c *core) conclude(id uint32, now int64) bool {
	r := &c.rules[id]
	result := c.tables.Result(id, r.round.isn)
	if result.State >= dataplane.ProbeConnected {
		r.heard, r.doubted = true, false
	}
	if !result.State.Final() && !over(time.Duration(now-r.began), time.Duration(now-r.last), c.timeout(r), int(r.sent), result.State == dataplane.ProbeConnected) {
		return false
	}
	if result.State == dataplane.ProbeConnected {
		for i := range r.sent {
			c.resets = append(c.resets, reset{entry{id, r.gen + 1}, r.round.isn + 1 + uint32(r.request), r.round.port + uint16(i)})
		}
	}
	at := now
	if result.State.Final() && int64(result.Time) > r.began {
		at = int64(result.Time)
	}
	own := r.heard || r.tunnel
	if own && result.State == dataplane.ProbeSilent && !r.tunnel && !r.doubted && c.doubts.one(now, now+int64(probe.PacketsRest)) {
		own, r.doubted = false, true
	}
	v, words := verdict(outcome{result, int(r.sent), c.timeout(r), own}, c.good(r))
	c.finish(id, at, v, words)
	c.answers[len(c.answers)-1].Silent = v == probe.Bad && silent(result.State)
	return true
}

// good returns the statuses that are good for a target.
func (c *core) good(r *rule) lb.StatusSet {
	if r.request == 0 {
		return ""
	}
	return c.checks.list[r.terms].good
}

// later adds a probe to the wheel, or queues it for a retry if that is due.
func (c *core) later(e entry, now int64) {
	r := &c.rules[e.id]
	age := time.Duration(now - r.began)
	connected := c.tables.Result(e.id, r.round.isn).State == dataplane.ProbeConnected
	if at, ok := retryAt(c.timeout(r), int(r.sent), connected); ok && age >= at {
		c.queue.push(e)
		return
	}
	c.wheel.add(e, max(r.began+int64(lookAt(age, c.timeout(r), int(r.sent), connected)), now+millisecond))
}

// lookOld checks a probe whose entry in the wheel is due.
func (c *core) lookOld(e entry, now int64) {
	r := &c.rules[e.id]
	switch {
	case r.gen != e.gen:
	case r.stage == parked:
		if left := r.began + int64(c.timeout(r)/2) - now; left > 0 {
			c.wheel.add(e, now+max(left, millisecond))
			return
		}
		c.noWay(e.id, now)
	case r.stage == flying && !c.conclude(e.id, now):
		c.later(e, now)
	}
}

package packet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// core is the asker without goroutine, lock and clock: time comes in, frames and answers go out.
type core struct {
	tables  dataplane.ProbeTables
	sender  Sender
	random  func() uint64
	window  int
	devices []int
	local   func(is4 bool) netip.Addr

	rules   []rule // by number
	sources []netip.Prefix
	ways    map[netip.Addr]netdev.NextHop // as far as they were told
	wanted  map[netip.Addr]int            // destinations, with the number of their rules
	moved   bool                          // other destinations than were told

	queue  fifo    // to be sent: first SYNs, and again
	resets []reset // connections to be ended
	young  []flight
	wheel  wheel
	bursts bursts
	// answers are to be reported.
	answers []probe.Answer

	frames  [batch]Frame
	sending [batch]entry
	buffers [batch][frameMax]byte
}

// frameMax is the longest frame that is sent: two headers of IPv6, one of them with GUE, a tag and a TCP header.
const frameMax = 160

// flight is a probe of which a SYN was sent lately.
type flight struct {
	entry
	at int64
}

// reset is a connection to be ended.
type reset struct {
	entry
	seq  uint32
	port uint16
}

// fifo is a queue of entries.
type fifo struct {
	list []entry
	head int
}

func (q *fifo) push(e entry) { q.list = append(q.list, e) }
func (q *fifo) len() int     { return len(q.list) - q.head }
func (q *fifo) peek() entry  { return q.list[q.head] }
func (q *fifo) pop() {
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
}

// add makes a target known.
func (c *core) add(id uint32, t probe.Target) error {
	if id >= c.tables.Size() {
		return fmt.Errorf("probe %s: number %d: at most %d by packets (--max-probes)", t.Address, id, c.tables.Size())
	}
	if err := check(t); err != nil {
		return fmt.Errorf("probe %s: %w", t.Address, err)
	}
	if int(id) >= len(c.rules) {
		c.rules = append(c.rules, make([]rule, int(id)+1-len(c.rules))...)
	}
	r := &c.rules[id]
	if r.known {
		return fmt.Errorf("probe %s: number %d is that of %s", t.Address, id, r.target.Address)
	}
	*r = rule{target: t, timeout: t.Timeout(), gen: r.gen + 1, round: r.round, known: true}
	to := destination(t)
	if c.wanted[to]++; c.wanted[to] == 1 {
		c.moved = true
	}
	if _, told := c.ways[to]; told {
		c.place(id)
	}
	return nil
}

// remove forgets a target; of a probe under way nothing can be said.
func (c *core) remove(id uint32) {
	if int(id) >= len(c.rules) || !c.rules[id].known {
		return
	}
	r := &c.rules[id]
	if r.stage != idle {
		c.finish(id, 0, probe.Void, "not probed any more")
	}
	c.tables.Remove(id)
	to := destination(r.target)
	if c.wanted[to]--; c.wanted[to] == 0 {
		delete(c.wanted, to)
		c.moved = true
	}
	*r = rule{gen: r.gen + 1, round: r.round}
}

// place makes the record of a rule whose way is known.
func (c *core) place(id uint32) {
	r := &c.rules[id]
	way := c.ways[destination(r.target)]
	record, frame, err := place(r.target, surroundings{way, c.sources, c.devices, c.local})
	if err == nil {
		err = c.tables.Put(id, record)
	}
	if err != nil {
		c.tables.Remove(id)
		r.frame, r.fault = nil, err
		if errors.Is(err, errUnresolved) {
			r.fault = nil // it may come any moment
		}
		return
	}
	if r.ifindex != int32(way.Ifindex) {
		r.heard = false
	}
	r.frame, r.fault, r.ifindex, r.request = frame, nil, int32(way.Ifindex), int32(len(record.Request))
}

// replace makes the record again, in the middle of a probe too, which then goes on.
func (c *core) replace(id uint32, now int64) {
	r := &c.rules[id]
	c.place(id)
	switch {
	case r.stage == flying && r.frame != nil:
		c.tables.Begin(id, r.round.isn, r.round.port)
	case r.stage == parked && r.frame != nil:
		r.stage = queued
		r.gen++ // what the wheel has of it is over
		c.queue.push(entry{id, r.gen})
	case r.stage != idle && r.fault != nil:
		c.noWay(id, now)
	case r.stage != idle && r.frame == nil && r.stage != parked:
		r.stage = parked
		r.gen++
		c.wheel.add(entry{id, r.gen}, now)
	}
}

// noWay answers for a rule that there is no way to: somebody else may find one.
func (c *core) noWay(id uint32, now int64) {
	r := &c.rules[id]
	v, words := probe.Unsure, "the way is not known"
	if tunnelled(r.target) {
		v = probe.Void
	}
	if r.fault != nil {
		words = r.fault.Error()
	} else if _, told := c.ways[destination(r.target)]; told {
		words = errUnresolved.Error()
	}
	c.finish(id, now, v, words)
}

// hops takes the ways to destinations, as netdev.NextHops tells them.
func (c *core) hops(ways map[netip.Addr]netdev.NextHop, now int64) {
	changed := map[netip.Addr]bool{}
	for to, way := range ways {
		if was, knew := c.ways[to]; !knew || !sameWay(way, was) {
			changed[to] = true
		}
	}
	c.ways = ways
	if len(changed) == 0 {
		return
	}
	for id := range c.rules {
		if r := &c.rules[id]; r.known && changed[destination(r.target)] {
			c.replace(uint32(id), now)
		}
	}
}

// sameWay compares all that frames depend on.
func sameWay(a, b netdev.NextHop) bool {
	a.MTU, b.MTU = 0, 0
	return a == b
}

// tunnelSources takes what the outer headers come from.
func (c *core) tunnelSources(sources []netip.Prefix, now int64) {
	if slices.Equal(sources, c.sources) {
		return
	}
	c.sources = slices.Clone(sources)
	for id := range c.rules {
		r := &c.rules[id]
		if !r.known || !tunnelled(r.target) {
			continue
		}
		if _, told := c.ways[destination(r.target)]; told {
			c.replace(uint32(id), now)
		}
	}
}

// ask begins probes.
func (c *core) ask(ids []uint32, now int64) {
	for _, id := range ids {
		if int(id) >= len(c.rules) || !c.rules[id].known {
			c.answers = append(c.answers, probe.Answer{ID: id, Verdict: probe.Void, Words: "not probed any more"})
			continue
		}
		r := &c.rules[id]
		if r.stage != idle {
			panic(fmt.Sprintf("probe %d of %s is asked while it is under way", id, r.target.Address))
		}
		r.asked, r.began, r.sent = now, 0, 0
		switch {
		case r.frame != nil:
			r.stage = queued
			c.queue.push(entry{id, r.gen})
		case r.fault != nil:
			r.stage = parked
			c.noWay(id, now)
		default:
			r.stage = parked
			c.wheel.add(entry{id, r.gen}, now+int64(r.timeout/2))
		}
	}
}

// finish answers for a probe.
func (c *core) finish(id uint32, now int64, v probe.Verdict, words string) {
	r := &c.rules[id]
	from := r.began
	if from == 0 {
		from = r.asked
	}
	c.answers = append(c.answers, probe.Answer{ID: id, Verdict: v, Words: words, Took: time.Duration(max(now-from, 0))})
	r.stage = idle
	r.gen++
}

// step does all that is to be done at a time, and tells how long there is nothing: below 0 until somebody asks.
func (c *core) step(now int64) time.Duration {
	c.lookYoung(now)
	c.wheel.due(now, func(e entry) { c.lookOld(e, now) })
	c.collectBursts(now)
	c.beginBurst(now)
	most := batch
	bursting := c.bursts.active != nil
	if bursting {
		most = aside
	}
	busy := c.send(now, most)
	if c.queue.len() == 0 {
		// Near servers have answered already, and nobody needs to wake for them.
		c.lookYoung(now)
	}
	switch {
	case busy, bursting:
		return tick
	case (c.queue.len() > 0 || len(c.resets) > 0) && len(c.young) < c.window:
		return 0
	case c.queue.len() > 0:
		return pause
	case len(c.young) > 0, c.bursts.judging != nil:
		return tick
	}
	if at, ok := c.wheel.next(); ok {
		return max(time.Duration(at-now), millisecond)
	}
	return -1
}

// lookYoung goes over what was sent lately.
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

// conclude answers for a probe that came to an end.
func (c *core) conclude(id uint32, now int64) bool {
	r := &c.rules[id]
	result := c.tables.Result(id, r.round.isn)
	r.heard = r.heard || result.State >= dataplane.ProbeConnected
	if !result.State.Final() && !over(time.Duration(now-r.began), time.Duration(now-r.last), r.timeout, int(r.sent), result.State == dataplane.ProbeConnected) {
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
	v, words := verdict(outcome{result, int(r.sent), r.timeout, r.heard, tunnelled(r.target)}, c.good(r))
	c.finish(id, at, v, words)
	c.answers[len(c.answers)-1].Silent = v == probe.Bad && silent(result.State)
	return true
}

// good are the statuses that are good for a rule.
func (c *core) good(r *rule) lb.StatusSet {
	if r.request == 0 {
		return ""
	}
	check := r.target.Check.Value()
	return check.Status
}

// later puts a probe into the wheel, or asks again.
func (c *core) later(e entry, now int64) {
	r := &c.rules[e.id]
	age := time.Duration(now - r.began)
	connected := c.tables.Result(e.id, r.round.isn).State == dataplane.ProbeConnected
	if at, ok := retryAt(r.timeout, int(r.sent), connected); ok && age >= at {
		c.queue.push(e)
		return
	}
	c.wheel.add(e, max(r.began+int64(lookAt(age, r.timeout, int(r.sent), connected)), now+millisecond))
}

// lookOld looks at a probe that the wheel brings.
func (c *core) lookOld(e entry, now int64) {
	r := &c.rules[e.id]
	switch {
	case r.gen != e.gen:
	case r.stage == parked:
		if left := r.asked + int64(r.timeout/2) - now; left > 0 {
			c.wheel.add(e, now+max(left, millisecond))
			return
		}
		c.noWay(e.id, now)
	case r.stage == flying && !c.conclude(e.id, now):
		c.later(e, now)
	}
}

// send fills the window with so many frames at most; true when the device is busy.
func (c *core) send(now int64, most int) (busy bool) {
	n := c.sendResets(most)
	first := n
	for n < most && c.queue.len() > 0 && len(c.young)+n-first < c.window {
		e := c.queue.peek()
		r := &c.rules[e.id]
		if r.gen != e.gen || r.frame == nil || r.stage != queued && r.stage != flying {
			c.queue.pop()
			continue
		}
		if r.stage == queued {
			c.begin(e.id, now)
		} else if c.conclude(e.id, now) {
			c.queue.pop()
			continue
		}
		c.queue.pop()
		c.put(n, e, r.round.port+uint16(r.sent), r.round.isn, flagSYN)
		r.sent++
		n++
	}
	if n == 0 {
		return false
	}
	sent, err := c.sender.Send(c.frames[:n])
	if err == nil && sent == 0 {
		err = ErrBusy
	}
	for i := first; i < min(sent, n); i++ {
		c.rules[c.sending[i].id].last = now
		c.young = append(c.young, flight{c.sending[i], now})
	}
	if sent >= n {
		return false
	}
	return c.unsent(c.sending[max(sent, first):n], sent < first, err, now)
}

// begin begins the round of a probe.
func (c *core) begin(id uint32, now int64) {
	r := &c.rules[id]
	r.round = newRound(id, c.tables.Key(), c.random(), r.round)
	r.stage, r.began, r.last, r.sent = flying, now, now, 0
	c.tables.Begin(id, r.round.isn, r.round.port)
}

// sendResets puts what ends connections into the first frames, and gives their number: best effort.
func (c *core) sendResets(most int) (n int) {
	for n < most/2 && len(c.resets) > 0 {
		x := c.resets[len(c.resets)-1]
		c.resets = c.resets[:len(c.resets)-1]
		if r := &c.rules[x.id]; r.known && r.frame != nil {
			c.put(n, x.entry, x.port, x.seq, flagRST)
			n++
		}
	}
	return n
}

// put makes frame i of a rule.
func (c *core) put(i int, e entry, port uint16, seq uint32, flags uint8) {
	r := &c.rules[e.id]
	b := c.buffers[i][:copy(c.buffers[i][:], r.frame)]
	patch(b, port, seq, flags)
	c.frames[i], c.sending[i] = Frame{r.ifindex, b}, e
}

// unsent takes back SYNs that did not go: all of them later, but for the first when the error is about it and will stay.
func (c *core) unsent(entries []entry, others bool, err error, now int64) bool {
	for i, e := range entries {
		r := &c.rules[e.id]
		r.sent--
		if i == 0 && !others && err != nil && !errors.Is(err, ErrBusy) {
			c.finish(e.id, now, probe.Void, err.Error())
			continue
		}
		if r.sent == 0 {
			r.stage = queued
		}
		c.queue.push(e)
	}
	return errors.Is(err, ErrBusy)
}

package packet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unique"

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
	checks  checks
	places  *places
	tunnels map[uint32]tunnelRule // those through tunnels
	faults  map[uint32]error      // of those that cannot be asked
	sources []netip.Prefix
	told    netdev.Ways
	ways    []way // those of told, from 1 up
	moved   bool  // other destinations than were told
	// doubts are of servers that fell silent, for as long as others ask them then: all those that are lost at once would fill
	// the room of others. unreached are of next hops.
	doubts, unreached doubts
	busy              busy

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

func newCore(o Options) core {
	return core{
		tables: o.Tables, sender: o.Sender, random: o.Random, window: o.Window, devices: o.Devices, local: o.Local,
		checks: checks{known: map[unique.Handle[lb.Check]]uint32{}}, places: newPlaces(), ways: make([]way, 1),
		tunnels: map[uint32]tunnelRule{}, faults: map[uint32]error{},
	}
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
		return fmt.Errorf("probe %s: number %d: %w: at most %d by packets (--max-probes)", t.Address, id, probe.ErrCrowded, c.tables.Size())
	}
	if err := check(t); err != nil {
		return fmt.Errorf("probe %s: %w", t.Address, err)
	}
	if int(id) >= len(c.rules) {
		c.rules = append(c.rules, make([]rule, int(id)+1-len(c.rules))...)
	}
	r := &c.rules[id]
	if r.known {
		return fmt.Errorf("probe %s: number %d is that of %s", t.Address, id, c.target(id).Address)
	}
	to := destination(t)
	place, first := c.places.hold(to)
	*r = rule{
		terms: c.checks.hold(t.Check), place: place, port: t.Address.Port(), tunnel: tunnelled(t), gen: r.gen + 1, round: r.round, known: true,
	}
	if r.tunnel {
		c.tunnels[id] = tunnelRule{target: t}
	}
	if first {
		c.moved = true
		// It may have been wanted a moment ago, and nobody tells again.
		if which, told := c.told.Which(to); told {
			c.places.list[place].way = uint32(which) + 1
		}
	}
	if c.places.list[place].way != 0 {
		c.place(id)
	}
	return nil
}

// target is that of a rule.
func (c *core) target(id uint32) probe.Target {
	r := &c.rules[id]
	if r.tunnel {
		return c.tunnels[id].target
	}
	return probe.Target{Check: c.checks.list[r.terms].check, Address: netip.AddrPortFrom(c.places.list[r.place].address, r.port)}
}

func (c *core) timeout(r *rule) time.Duration { return c.checks.list[r.terms].timeout }

// way is the way of a rule, the zero one when it was not told.
func (c *core) way(r *rule) *way { return &c.ways[c.places.list[r.place].way] }

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
	if c.places.release(r.place) {
		c.moved = true
	}
	c.checks.release(r.terms)
	delete(c.tunnels, id)
	delete(c.faults, id)
	*r = rule{gen: r.gen + 1, round: r.round}
}

// place makes the record of a rule, if its way is known.
func (c *core) place(id uint32) {
	r, target := &c.rules[id], c.target(id)
	delete(c.faults, id)
	r.faulty = false
	err := errUnresolved
	if c.places.list[r.place].way != 0 {
		var rec dataplane.ProbeRule
		var frame []byte
		rec, frame, err = record(target, surroundings{c.way(r).NextHop, c.sources, c.devices, c.local})
		if err == nil {
			err = c.tables.Put(id, rec)
		}
		if err == nil {
			r.placed, r.request = true, uint16(len(rec.Request))
			if r.tunnel {
				c.tunnels[id] = tunnelRule{target, frame}
			}
			return
		}
	}
	c.tables.Remove(id)
	r.placed = false
	// What is not known may come any moment.
	if !errors.Is(err, errUnresolved) {
		r.faulty, c.faults[id] = true, err
	}
}

// replace makes the record again, in the middle of a probe too, which then goes on.
func (c *core) replace(id uint32, now int64) {
	r := &c.rules[id]
	c.place(id)
	switch {
	case r.stage == flying && r.placed:
		c.tables.Begin(id, r.round.isn, r.round.port)
	case r.stage == parked && r.placed:
		r.stage = queued
		r.gen++ // what the wheel has of it is over
		c.queue.push(entry{id, r.gen})
	case r.stage != idle && r.faulty:
		c.noWay(id, now)
	case r.stage != idle && !r.placed && r.stage != parked:
		r.stage = parked
		r.gen++
		c.wheel.add(entry{id, r.gen}, now)
	}
}

// resolving is how long a next hop may take to answer before others are asked: the kernel gives up in about three seconds.
const resolving = 3 * time.Second

// noWay answers for a rule that there is no way to. While it may come that says nothing; else somebody else may find one.
func (c *core) noWay(id uint32, now int64) {
	r := &c.rules[id]
	v, words := probe.Void, "no way to the server is known yet"
	switch {
	case r.faulty:
		if words = c.faults[id].Error(); !r.tunnel {
			v = probe.Unsure
		}
	case c.places.list[r.place].way != 0:
		words = errUnresolved.Error()
		if !r.tunnel && now-c.way(r).since >= int64(resolving) && c.unreached.one(now, now+int64(c.timeout(r))) {
			v = probe.Unsure
		}
	}
	crowded := r.faulty && errors.Is(c.faults[id], dataplane.ErrProbeRoom)
	c.finish(id, now, v, words)
	c.answers[len(c.answers)-1].Crowded = crowded
}

// hops takes the ways to destinations, as netdev.NextHops tells them.
func (c *core) hops(told netdev.Ways, now int64) {
	since := map[netdev.NextHop]int64{}
	for _, w := range c.ways {
		if !w.Resolved && w.Ifindex != 0 {
			since[w.NextHop] = w.since
		}
	}
	ways := make([]way, 1, 1+len(told.Hops()))
	for _, hop := range told.Hops() {
		w := way{NextHop: hop, since: now}
		if before, ok := since[hop]; ok {
			w.since = before
		}
		ways = append(ways, w)
	}
	to := make([]uint32, len(c.places.list))
	for address, which := range told.Each() {
		if n, wanted := c.places.number(address); wanted {
			to[n] = uint32(which) + 1
		}
	}
	changed, some := make([]bool, len(to)), false
	elsewhere := map[uint32]bool{} // places whose answers may come by another interface now
	for n := range to {
		p := &c.places.list[n]
		before, after := c.ways[p.way].NextHop, ways[to[n]].NextHop
		changed[n] = (p.way == 0) != (to[n] == 0) || !sameWay(before, after)
		some = some || changed[n]
		if before.Ifindex != 0 && before.Ifindex != after.Ifindex {
			elsewhere[uint32(n)] = true
		}
		p.way = to[n]
	}
	c.told, c.ways = told, ways
	if !some {
		return
	}
	for id := range c.rules {
		r := &c.rules[id]
		if !r.known || !changed[r.place] {
			continue
		}
		if elsewhere[r.place] {
			r.heard, r.doubted = false, false
		}
		c.replace(uint32(id), now)
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
		if r := &c.rules[id]; r.known && r.tunnel && c.places.list[r.place].way != 0 {
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
			panic(fmt.Sprintf("probe %d of %s is asked while it is under way", id, c.target(id).Address))
		}
		r.began, r.sent = now, 0
		switch {
		case r.placed:
			r.stage = queued
			c.queue.push(entry{id, r.gen})
		case r.faulty:
			r.stage = parked
			c.noWay(id, now)
		default:
			r.stage = parked
			c.wheel.add(entry{id, r.gen}, now+int64(c.timeout(r)/2))
		}
	}
}

// finish answers for a probe.
func (c *core) finish(id uint32, now int64, v probe.Verdict, words string) {
	r := &c.rules[id]
	c.answers = append(c.answers, probe.Answer{ID: id, Verdict: v, Words: words, Took: time.Duration(max(now-r.began, 0))})
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

// good are the statuses that are good for a rule.
func (c *core) good(r *rule) lb.StatusSet {
	if r.request == 0 {
		return ""
	}
	return c.checks.list[r.terms].good
}

// later puts a probe into the wheel, or asks again.
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

// lookOld looks at a probe that the wheel brings.
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

// send fills the window with so many frames at most; true when the device is busy.
func (c *core) send(now int64, most int) (busy bool) {
	n := c.sendResets(most)
	first := n
	for n < most && c.queue.len() > 0 && len(c.young)+n-first < c.window {
		e := c.queue.peek()
		r := &c.rules[e.id]
		if r.gen != e.gen || !r.placed || r.stage != queued && r.stage != flying {
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
	if sent > 0 {
		c.busy.passed(c.frames[:min(sent, n)])
	}
	for i := first; i < min(sent, n); i++ {
		c.rules[c.sending[i].id].last = now
		c.young = append(c.young, flight{c.sending[i], now})
	}
	if sent >= n {
		return false
	}
	busy = c.unsent(c.sending[max(sent, first):n], sent < first, err, now)
	if busy {
		c.giveUp(c.frames[sent].Ifindex, now)
	}
	return busy
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
		if r := &c.rules[x.id]; r.known && r.placed {
			c.put(n, x.entry, x.port, x.seq, flagRST)
			n++
		}
	}
	return n
}

// ifindex is the interface that a rule's frames leave by, 0 while its way is not told.
func (c *core) ifindex(id uint32) int32 { return int32(c.way(&c.rules[id]).Ifindex) }

// frame makes the frame of a rule in b, without what patch writes.
func (c *core) frame(b []byte, id uint32) []byte {
	r := &c.rules[id]
	if r.tunnel {
		return b[:copy(b, c.tunnels[id].frame)]
	}
	w := c.way(r)
	return b[:plain(b, linkOf(w.NextHop), w.Source, netip.AddrPortFrom(c.places.list[r.place].address, r.port))]
}

// put makes frame i of a rule.
func (c *core) put(i int, e entry, port uint16, seq uint32, flags uint8) {
	b := c.frame(c.buffers[i][:], e.id)
	patch(b, port, seq, flags)
	c.frames[i], c.sending[i] = Frame{c.ifindex(e.id), b}, e
}

// unsent takes back SYNs that did not go: all of them later, but for the first when the error is about it and will stay, and those
// whose device has been busy for as long as they have time.
func (c *core) unsent(entries []entry, others bool, err error, now int64) bool {
	full := errors.Is(err, ErrBusy)
	for i, e := range entries {
		r := &c.rules[e.id]
		r.sent--
		if i == 0 && !others && err != nil && !full {
			c.finish(e.id, now, probe.Void, err.Error())
			continue
		}
		if r.sent == 0 {
			r.stage = queued
		}
		c.queue.push(e)
	}
	return full
}

// giveUp answers for probes that wait for a device that has been busy for as long as they have time: of a server nothing can be said.
func (c *core) giveUp(ifindex int32, now int64) {
	span := c.busy.refused(ifindex, now)
	if span < c.checks.least() {
		return
	}
	for left := c.queue.len(); left > 0; left-- {
		e := c.queue.peek()
		c.queue.pop()
		r := &c.rules[e.id]
		if r.gen == e.gen && r.stage == queued && c.ifindex(e.id) == ifindex && span >= c.timeout(r) {
			c.finish(e.id, now, probe.Void, "the device takes no packets: busy for "+span.Round(time.Millisecond).String())
			continue
		}
		c.queue.push(e)
	}
}

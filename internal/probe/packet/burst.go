package packet

import (
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// Bounds of bursts.
const (
	// quickFloor and floor are how many probes that wait make a quick burst, or a long one, worth its while: sending the others by the
	// packet socket costs as much.
	quickFloor, floor = 6, 1000
	// lanes are the long bursts that there may be at once: one is sent while the kernel puts another's things away.
	lanes = 2
	// aside is how many frames a step sends by the packet socket beside a burst: the window is the burst's.
	aside = 16
	// distrust is how long no bursts go by a device after one that nobody answered within patience.
	distrust = time.Minute
	patience = 100 * time.Millisecond
	// respite is how long none waits for answers after one that did so more than it sent: servers are far, slow or silent.
	respite = time.Second
)

// bursts are what a core sends by dataplane.Burst: first SYNs of many probes. What becomes of them afterwards is as with those of
// the packet socket, and so are second ones: a device that loses bursts costs an attempt, but no verdict.
type bursts struct {
	open func(quick bool) (dataplane.Burst, error) // nil: there are none
	// say is told why there are no quick ones.
	say func(error)
	// quick: only such ones are made, else long ones.
	quick bool
	// least are the probes of a burst, leastLong those of a long one.
	least, leastLong int
	all              []*lane
	// active is sending, trial has sent and its answers may be on their way.
	active *lane
	trial  *trial
	trusts map[int32]*trust
}

// newBursts are those of a sender that opens quick ones if it can.
func newBursts(open func(quick bool) (dataplane.Burst, error), say func(error)) bursts {
	return bursts{open: open, say: say, quick: true, least: quickFloor, leastLong: floor}
}

// lane is a sender of bursts with the burst that it sends.
type lane struct {
	sender  dataplane.Burst
	entries []entry
	sent    int  // entries that went
	heard   bool // one of their servers
	trust   *trust
}

// trial is a burst that tells whether its device takes bursts.
type trial struct {
	entries []entry
	trust   *trust
	ended   int64 // when
}

// trust is what is known of a device.
type trust struct {
	// proven: it takes bursts. Others get one that fills the window, and no more until it was judged.
	proven bool
	// until is the time before which it gets none, far that before which none waits for answers.
	until, far int64
}

// free is a lane for the next burst; nil: not now.
func (b *bursts) free() *lane {
	for _, l := range b.all {
		switch idle, err := l.sender.Idle(); {
		case err != nil:
			b.open = nil // the kernel cannot
			return nil
		case idle && l != b.active:
			return l
		}
	}
	if len(b.all) == lanes || b.quick && len(b.all) > 0 {
		return nil
	}
	sender, err := b.open(b.quick)
	if err != nil && b.quick {
		b.quick, b.least = false, b.leastLong
		if b.say != nil {
			b.say(err)
		}
		return nil
	}
	if err != nil {
		b.open = nil
		return nil
	}
	l := &lane{sender: sender}
	b.all = append(b.all, l)
	return l
}

// of is what is known of a device.
func (b *bursts) of(ifindex int32) *trust {
	t := b.trusts[ifindex]
	if t == nil {
		t = &trust{}
		if b.trusts == nil {
			b.trusts = map[int32]*trust{}
		}
		b.trusts[ifindex] = t
	}
	return t
}

// beginBurst sends what waits as a burst, when that is worth it and possible: to servers behind one device. It tells whether one began.
func (c *core) beginBurst(now int64) bool {
	b := &c.bursts
	if b.open == nil || c.queue.len() < b.least || b.active != nil {
		return false
	}
	ifindex := c.ifindex(c.queue.peek().id)
	trust := b.of(ifindex)
	window := min(c.window, dataplane.BurstWindow)
	if b.quick {
		// Those that the sender does not know of have their places, too.
		window -= len(c.young)
	}
	if now < trust.until || !trust.proven && b.trial != nil || window < min(b.least, c.window) {
		return false
	}
	l := b.free()
	if l == nil {
		return false
	}
	most := dataplane.BurstFrames
	switch {
	case !trust.proven || b.quick && now < trust.far:
		most = window
	case b.quick:
		most = dataplane.QuickFrames
	}
	c.fill(l, ifindex, most, now)
	if !b.quick && len(l.entries) < most && len(l.entries) < b.least {
		trust.until = now + int64(respite) // too few of many: they are behind other devices
	}
	if len(l.entries) == 0 {
		return false
	}
	b.active, l.trust = l, trust
	l.sender.Start(len(l.entries), window, young)
	return true
}

// fill makes the next burst of a lane of what waits for one device: of all of it a long one, of its first a quick one.
func (c *core) fill(l *lane, ifindex int32, most int, now int64) {
	l.entries, l.sent, l.heard = l.entries[:0], 0, false
	left := c.queue.len()
	if c.bursts.quick {
		left = min(left, 2*most)
	}
	for ; left > 0 && len(l.entries) < most; left-- {
		e := c.queue.peek()
		c.queue.pop()
		r := &c.rules[e.id]
		if r.gen != e.gen || !r.placed || r.stage != queued && r.stage != flying {
			continue
		}
		if r.stage != queued || c.ifindex(e.id) != ifindex {
			c.queue.push(e)
			continue
		}
		c.begin(e.id, now)
		frame := c.frame(c.buffers[0][:], e.id)
		patch(frame, r.round.port, r.round.isn, flagSYN)
		if err := l.sender.Put(len(l.entries), dataplane.BurstFrame{Number: e.id, ISN: r.round.isn, Ifindex: ifindex, Data: frame}); err != nil {
			panic("packet prober: " + err.Error())
		}
		l.entries = append(l.entries, e)
	}
}

// collectBursts takes over what a burst has sent, and judges one whose answers have had their time.
func (c *core) collectBursts(now int64) {
	b := &c.bursts
	if l := b.active; l != nil {
		sent, ended := l.sender.Sent()
		for ; l.sent < sent; l.sent++ {
			c.departed(l, now)
		}
		if ended {
			c.giveBack(l, now)
			b.active = nil
			c.try(l, now)
		}
	}
	if t := b.trial; t != nil && now-t.ended > int64(young) && c.judge(t, now) {
		b.trial = nil
	}
}

// try makes a burst that ended the trial of its device, when there is none and its answers have not told yet.
func (c *core) try(l *lane, now int64) {
	switch b := &c.bursts; {
	case l.heard:
		l.trust.proven = true
	case b.trial == nil && l.sent > 0:
		b.trial = &trial{entries: append([]entry(nil), l.entries[:l.sent]...), trust: l.trust, ended: now}
	}
}

// departed takes over the next probe that a burst has sent.
func (c *core) departed(l *lane, now int64) {
	e, at := l.entries[l.sent], l.sender.At(l.sent)
	r := &c.rules[e.id]
	if r.gen != e.gen {
		return
	}
	r.began, r.last, r.sent = at, at, 1
	if !c.conclude(e.id, now) {
		c.young = append(c.young, flight{e, at})
		return
	}
	l.heard = l.heard || r.heard
}

// giveBack queues what a burst that ended did not send.
func (c *core) giveBack(l *lane, now int64) {
	for _, e := range l.entries[l.sent:] {
		if r := &c.rules[e.id]; r.gen == e.gen {
			r.stage, r.sent = queued, 0
			c.queue.push(e)
		}
	}
	switch {
	case l.sent >= len(l.entries)/2:
	case c.bursts.quick:
		l.trust.far = now + int64(respite)
	default:
		l.trust.until = now + int64(respite)
	}
}

// judge says whether a burst told something of its device: somebody answered, or nobody did for long.
func (c *core) judge(t *trial, now int64) bool {
	silent := false
	for _, e := range t.entries {
		r := &c.rules[e.id]
		if r.gen != e.gen && (r.gen != e.gen+1 || r.stage == flying) {
			continue // its next round has begun, nobody knows any more
		}
		// What answers a second SYN, which goes by the packet socket, says nothing.
		if result := c.tables.Result(e.id, r.round.isn); result.State != dataplane.ProbeSilent && result.Attempt == 0 {
			t.trust.proven = true
			return true
		}
		silent = true
	}
	if silent && now-t.ended < int64(patience) {
		return false
	}
	if silent {
		t.trust.proven, t.trust.until = false, now+int64(distrust)
	}
	return true
}

// closeBursts ends all senders.
func (c *core) closeBursts() {
	for _, l := range c.bursts.all {
		l.sender.Close() //nolint:errcheck // programs and tables that go
	}
	c.bursts = bursts{}
}

package packet

import (
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// Bounds of bursts.
const (
	// quickFloor and floor are how many waiting probes are needed for a quick burst and for a long
	// one. For fewer, the packet socket costs no more.
	quickFloor, floor = 6, 1000
	// lanes bounds the concurrent long bursts: one is sent while the kernel releases the resources
	// of another.
	lanes = 2
	// aside is how many frames a step sends by the packet socket during a burst. It is small
	// because the burst uses the window.
	aside = 16
	// distrust is how long a device gets no bursts after one without any answer within patience.
	distrust = time.Minute
	patience = 100 * time.Millisecond
	// respite is for how long a device gets no quick burst that waits for answers, or no long burst
	// at all, after one that sent less than half of its frames, because then its servers are far,
	// slow or silent. It also delays the next long burst if too few waiting probes are for the
	// device.
	respite = time.Second
)

// bursts sends the first SYNs of many probes by dataplane.Burst. All later steps, and second SYNs,
// are as with the packet socket. So a device that loses bursts costs an attempt, but no verdict.
type bursts struct {
	open func(quick bool) (dataplane.Burst, error) // nil: bursts are not possible
	// say receives the reason why there are no quick bursts.
	say func(error)
	// quick: only quick bursts are used; otherwise only long ones.
	quick bool
	// least is the minimum number of probes of a burst, leastLong that of a long one.
	least, leastLong int
	all              []*lane
	// active is sending. trial has been sent, and its answers may still arrive.
	active *lane
	trial  *trial
	trusts map[int32]*trust
}

// newBursts returns bursts that are quick if open can open a quick sender.
func newBursts(open func(quick bool) (dataplane.Burst, error), say func(error)) bursts {
	return bursts{open: open, say: say, quick: true, least: quickFloor, leastLong: floor}
}

// lane is a sender of bursts with its current burst.
type lane struct {
	sender  dataplane.Burst
	entries []entry
	sent    int  // entries sent so far
	heard   bool // a server of the burst answered
	trust   *trust
}

// trial is a burst whose answers show whether its device takes bursts.
type trial struct {
	entries []entry
	trust   *trust
	ended   int64 // time of the end
}

// trust is the state of a device.
type trust struct {
	// proven: it takes bursts. An unproven device gets one burst that fills the window, and no more
	// until that was judged.
	proven bool
	// until is the time before which it gets no burst, far that before which none may wait for
	// answers.
	until, far int64
}

// free returns a lane for the next burst; nil: none is free now.
func (b *bursts) free() *lane {
	for _, l := range b.all {
		switch idle, err := l.sender.Idle(); {
		case err != nil:
			b.open = nil // the kernel does not support bursts
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

// of returns the state of a device.
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

// beginBurst sends the waiting probes to servers behind one device as a burst, if that is possible
// and there are enough of them. It reports whether a burst began.
func (c *core) beginBurst(now int64) bool {
	b := &c.bursts
	if b.open == nil || c.queue.len() < b.least || b.active != nil {
		return false
	}
	ifindex := c.ifindex(c.queue.peek().id)
	trust := b.of(ifindex)
	window := min(c.window, dataplane.BurstWindow)
	if b.quick {
		// Probes sent otherwise take part of the window too, and the sender does not count them.
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
		trust.until = now + int64(respite) // too few of many: the others are behind other devices
	}
	if len(l.entries) == 0 {
		return false
	}
	b.active, l.trust = l, trust
	l.sender.Start(len(l.entries), window, young)
	return true
}

// fill fills the next burst of a lane with waiting probes for one device. A long burst takes from
// the whole queue, a quick one from its head.
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

// collectBursts takes over the probes that a burst has sent, and judges the trial once young has
// passed since its end.
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

// try marks the device as proven if a server of a finished burst answered. Otherwise it makes the
// burst the trial of its device, if there is no other.
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

// giveBack queues the probes that a finished burst did not send.
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

// judge reports whether the trial is decided: a server answered, or none did within patience.
func (c *core) judge(t *trial, now int64) bool {
	silent := false
	for _, e := range t.entries {
		r := &c.rules[e.id]
		if r.gen != e.gen && (r.gen != e.gen+1 || r.stage == flying) {
			continue // its next round has begun, so its result is gone
		}
		// An answer to a later SYN proves nothing, because that was sent by the packet socket.
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

// closeBursts closes all senders.
func (c *core) closeBursts() {
	for _, l := range c.bursts.all {
		l.sender.Close() //nolint:errcheck // programs and tables that go
	}
	c.bursts = bursts{}
}

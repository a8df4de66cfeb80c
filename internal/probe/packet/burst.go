package packet

import (
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// Bounds of bursts.
const (
	// floor is how many probes that wait make a burst worth its while: sending the others by the packet socket takes as long.
	floor = 1000
	// lanes are the bursts that there may be at once: one is sent while the kernel puts another's things away.
	lanes = 2
	// aside is how many frames a step sends by the packet socket beside a burst: the window is the burst's.
	aside = 16
	// distrust is how long no bursts go by a device after one that nobody answered within patience.
	distrust = time.Minute
	patience = 100 * time.Millisecond
	// respite is how long none go after one that waited for answers more than it sent: servers are far, slow or silent.
	respite = time.Second
)

// bursts are what a core sends by dataplane.Burst: first SYNs of many probes. What becomes of them afterwards is as with those of
// the packet socket, and so are second ones: a device that loses bursts costs an attempt, but no verdict.
type bursts struct {
	open  func() (dataplane.Burst, error) // nil: there are none
	least int                             // probes of a burst
	all   []*lane
	// active is sending; judging has sent, and its answers may be on their way.
	active, judging *lane
	trusts          map[int32]*trust
}

// lane is a sender of bursts with the burst that it sends.
type lane struct {
	sender  dataplane.Burst
	entries []entry
	sent    int  // entries that went
	heard   bool // one of their servers
	trust   *trust
	ended   int64 // when
}

// trust is what is known of a device.
type trust struct {
	// proven: it takes bursts. Others get one that fills the window, and no more until it was judged.
	proven bool
	// until is the time before which it gets none.
	until int64
}

// free is a lane for the next burst; nil: not now.
func (b *bursts) free() *lane {
	for _, l := range b.all {
		switch idle, err := l.sender.Idle(); {
		case err != nil:
			b.open = nil // the kernel cannot
			return nil
		case idle && l != b.active && l != b.judging:
			return l
		}
	}
	if len(b.all) == lanes {
		return nil
	}
	sender, err := b.open()
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

// beginBurst sends what waits as a burst, when that is worth it and possible: to servers behind one device.
func (c *core) beginBurst(now int64) {
	b := &c.bursts
	if b.open == nil || c.queue.len() < b.least || b.active != nil {
		return
	}
	ifindex := c.ifindex(c.queue.peek().id)
	trust := b.of(ifindex)
	if now < trust.until || !trust.proven && b.judging != nil {
		return
	}
	l := b.free()
	if l == nil {
		return
	}
	window := min(c.window, dataplane.BurstWindow)
	most := dataplane.BurstFrames
	if !trust.proven {
		most = window
	}
	l.entries, l.sent, l.heard, l.trust = l.entries[:0], 0, false, trust
	for left := c.queue.len(); left > 0 && len(l.entries) < most; left-- {
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
	if len(l.entries) < most && len(l.entries) < b.least {
		trust.until = now + int64(respite) // too few of many: they are behind other devices
	}
	if len(l.entries) > 0 {
		b.active = l
		l.sender.Start(len(l.entries), window, young)
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
			b.active, l.ended = nil, now
			if b.judging == nil {
				b.judging = l
			}
		}
	}
	if l := b.judging; l != nil && now-l.ended > int64(young) && c.judge(l, now) {
		b.judging = nil
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
	if l.sent < len(l.entries)/2 {
		l.trust.until = now + int64(respite)
	}
}

// judge says whether a burst told something of its device: somebody answered, or nobody did for long.
func (c *core) judge(l *lane, now int64) bool {
	silent := false
	for _, e := range l.entries[:l.sent] {
		switch r := &c.rules[e.id]; {
		case l.heard, r.gen != e.gen && r.heard, r.gen == e.gen && c.tables.Result(e.id, r.round.isn).State != dataplane.ProbeSilent:
			l.trust.proven = true
			return true
		case r.gen == e.gen:
			silent = true
		}
	}
	if silent && now-l.ended < int64(patience) {
		return false
	}
	if silent {
		l.trust.proven, l.trust.until = false, now+int64(distrust)
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

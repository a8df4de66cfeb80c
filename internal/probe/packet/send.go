package packet

import (
	"errors"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/probe"
)

// reset is a connection to be reset.
type reset struct {
	entry
	seq  uint32
	port uint16
}

// send sends at most most frames, within the window. It returns true if the device is busy.
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

// sendResets puts pending RSTs into the first frames and returns their number. They are best
// effort.
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

// ifindex returns the interface for a target's frames, 0 while its way is unknown.
func (c *core) ifindex(id uint32) int32 { return int32(c.way(&c.rules[id]).Ifindex) }

// frame builds the frame of a target in b, without the fields that patch writes.
func (c *core) frame(b []byte, id uint32) []byte {
	r := &c.rules[id]
	if r.tunnel {
		return b[:copy(b, c.tunnels[id].frame)]
	}
	w := c.way(r)
	return b[:plain(b, linkOf(w.NextHop), w.Source, netip.AddrPortFrom(c.places.list[r.place].address(), r.port))]
}

// put builds frame i of a target.
func (c *core) put(i int, e entry, port uint16, seq uint32, flags uint8) {
	b := c.frame(c.buffers[i][:], e.id)
	patch(b, port, seq, flags)
	c.frames[i], c.sending[i] = Frame{c.ifindex(e.id), b}, e
}

// unsent takes back SYNs that were not sent, and queues them for later. The first is Void instead
// if the error is about it and permanent. It reports whether the device is busy.
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

// giveUp reports Void for probes whose device has been busy for their whole timeout.
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

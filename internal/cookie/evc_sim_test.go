package cookie

import (
	"fmt"
	"math/rand/v2"
)

// stamper is a host between a server's timestamps and the network.
type stamper interface {
	answer(t uint32, again bool) uint32
	stamp(t uint32) uint32
	echo(w uint32) uint32
	lose()
}

// evcHost is a host that stamps with EVC and holds its valid cookies.
type evcHost struct {
	EVC
	n     TimeBits
	want  uint16
	valid map[uint16]bool
	mints int
}

func newEVCHost(n TimeBits, cookie uint16) *evcHost {
	return &evcHost{n: n, want: cookie, valid: map[uint16]bool{cookie: true}}
}

func (h *evcHost) answer(t uint32, again bool) uint32 { return h.Answer(h.n, t, h.want, again) }
func (h *evcHost) lose()                              { h.EVC = EVC{} }

func (h *evcHost) stamp(t uint32) uint32 {
	before := h.Cookie
	w := h.Stamp(h.n, t, h.want)
	if h.Cookie != before {
		h.mints++
	}
	return w
}

func (h *evcHost) echo(w uint32) uint32 {
	t, ours := h.Echo(h.n, w)
	if !ours && h.valid[uint16(h.n.Cookie(w))] {
		h.Rebuild(h.n, w)
	}
	return t
}

// remint requests a cookie under the other key.
func (h *evcHost) remint(r *rand.Rand) {
	h.want = h.want&0x8000 ^ 0x8000 | uint16(r.Uint32())&0x7fff
	h.valid[h.want] = true
}

// check panics when an invariant of the state does not hold.
func (h *evcHost) check() {
	e := &h.EVC
	if e.Kind != EVCLive {
		return
	}
	if e.VLast-e.VEcho >= h.n.Half() {
		panic(fmt.Sprintf("last %#x is %d after echo %#x, half is %d: %+v", e.VLast, int32(e.VLast-e.VEcho), e.VEcho, h.n.Half(), *e))
	}
}

// cheetah is the paper's encoding with state per connection: the upper bits of the last two
// periods, distinguished by a bit that flips.
type cheetah struct {
	n      TimeBits
	cookie uint32
	upper  [2]uint32
	flip   uint32
	begun  bool
}

func (c *cheetah) answer(t uint32, _ bool) uint32 { return c.stamp(t) }
func (c *cheetah) lose()                          {}

func (c *cheetah) stamp(t uint32) uint32 {
	upper := t >> (c.n - 1)
	if !c.begun {
		c.upper, c.begun = [2]uint32{upper, upper}, true
	}
	if c.upper[c.flip] != upper {
		c.flip ^= 1
		c.upper[c.flip] = upper
	}
	return c.flip<<31 | c.cookie<<(c.n-1)&(1<<31-1) | t&(c.n.Half()-1)
}

func (c *cheetah) echo(w uint32) uint32 { return c.upper[w>>31]<<(c.n-1) | w&(c.n.Half()-1) }

// sentSegment is a segment of the server in flight to the client.
type sentSegment struct {
	number int
	t, w   uint32
}

// strictClient applies RFC 7323's PAWS test without exceptions after silence.
type strictClient struct {
	known  bool
	recent sentSegment // the segment of TS.Recent
}

// take reports whether the client accepts a segment. A rejection is false unless the server's own
// timestamps, or the order in the network, explain it. inOrder segments set TS.Recent.
func (c *strictClient) take(s sentSegment, inOrder bool) (accepted, falsely bool) {
	if c.known && int32(s.w-c.recent.w) < 0 {
		return false, s.number > c.recent.number && int32(s.t-c.recent.t) >= 0
	}
	if !c.known || inOrder && s.w != c.recent.w {
		c.known, c.recent = true, s
	}
	return true, false
}

// echoed is an acknowledgement in flight to the server.
type echoed struct {
	at uint32 // in simulated time
	of sentSegment
}

// journey is one connection of a server, its host and a strict client.
type journey struct {
	r                *rand.Rand
	n                TimeBits
	host             stamper
	remints, loses   bool
	disorder, jitter bool // disorder: echoes overtake each other; jitter: the server's stamps do

	now, base uint32
	number    int
	client    strictClient
	echoes    []echoed

	sent, accepted, falsely, exact, none, wrong, losses int
	worst                                               string
}

// silence returns the time until the next turn.
func (j *journey) silence() uint32 {
	half := j.n.Half()
	switch x := j.r.Float64(); {
	case x < .35:
		return 0
	case x < .8:
		return 1 + j.r.Uint32N(30)
	case x < .95:
		return 30 + j.r.Uint32N(half)
	case x < .99:
		return half + j.r.Uint32N(8*half)
	}
	return half*uint32(1+j.r.IntN(10)) + j.r.Uint32N(3) - 1 // around the boundaries
}

// open makes the server answer SYNs until the client accepts an answer and its echo arrives.
func (j *journey) open() {
	for turn := uint32(1); ; turn *= 2 {
		s := j.answer(j.base+j.now, turn > 1)
		if turn >= 16 || j.r.Float64() < .6 { // it arrives
			j.client.take(s, true)
			if turn >= 16 || j.r.Float64() < .8 { // and so does the echo
				j.back(j.client.recent)
				return
			}
		}
		j.now += turn * j.n.Half() / 32
	}
}

// answer sends a SYN-ACK, send any other segment of the server.
func (j *journey) answer(t uint32, again bool) sentSegment {
	j.number++
	j.sent++
	return sentSegment{j.number, t, j.host.answer(t, again)}
}

func (j *journey) send(t uint32) sentSegment {
	j.number++
	j.sent++
	return sentSegment{j.number, t, j.host.stamp(t)}
}

// back passes an echo to the host and checks the timestamp that the server reads.
func (j *journey) back(of sentSegment) {
	t := j.host.echo(of.w)
	switch {
	case t == 0:
		j.none++
	case t == of.t:
		j.exact++
	default:
		j.wrong++
		j.worst = fmt.Sprintf("stamp %#x of %d came back as %d, %d ticks off", of.w, of.t, t, int32(t-of.t))
	}
}

// deliver passes the host the echoes that are due.
func (j *journey) deliver() {
	rest := j.echoes[:0]
	for i, e := range j.echoes {
		late := int32(j.now-e.at) < 0
		if late && !j.disorder {
			rest = append(rest, j.echoes[i:]...)
			break
		}
		if late {
			rest = append(rest, e)
			continue
		}
		j.back(e.of)
	}
	j.echoes = rest
}

// turn makes the server send a burst and the client possibly answer.
func (j *journey) turn() {
	j.now += j.silence()
	j.deliver()
	h, evc := j.host.(*evcHost)
	if evc && j.remints && j.r.Float64() < .02 {
		h.remint(j.r)
	}
	if j.loses && j.r.Float64() < .01 {
		j.host.lose()
		j.losses++
	}
	if evc && h.Kind == EVCEmpty {
		// Packets of a flow without state are not routed out until an echo arrives.
		j.ack(0)
		j.deliver()
		if h.Kind == EVCEmpty {
			return
		}
	}
	var burst []sentSegment
	for range 1 + j.r.IntN(4) {
		t := j.base + j.now
		if j.jitter && j.r.Float64() < .05 {
			t -= j.r.Uint32N(3)
		}
		burst = append(burst, j.send(t))
		if evc {
			h.check()
		}
	}
	lost := j.r.Float64() < .12
	if j.r.Float64() < .08 {
		j.r.Shuffle(len(burst), func(a, b int) { burst[a], burst[b] = burst[b], burst[a] })
	}
	for _, s := range burst {
		if lost || j.r.Float64() < .1 {
			continue
		}
		accepted, falsely := j.client.take(s, j.r.Float64() < .85)
		if accepted {
			j.accepted++
		}
		if !accepted {
			j.ack(0) // RFC 9293 section 3.10.7.4: unacceptable segments are acknowledged
		}
		if falsely {
			j.falsely++
			j.worst = fmt.Sprintf("segment %d, stamp %#x, is rejected after %d, stamp %#x", s.number, s.w, j.client.recent.number, j.client.recent.w)
		}
	}
	if j.r.Float64() < .75 {
		j.ack(j.r.Uint32N(j.n.Half() / 16))
	}
}

// ack makes the client send an echo of its TS.Recent, to arrive after a while.
func (j *journey) ack(after uint32) {
	if after > 0 && !j.disorder && len(j.echoes) > 0 && int32(j.echoes[len(j.echoes)-1].at-j.now-after) > 0 {
		after = j.echoes[len(j.echoes)-1].at - j.now
	}
	j.echoes = append(j.echoes, echoed{j.now + after, j.client.recent})
}

func (j *journey) run(turns int) {
	j.base = j.r.Uint32()
	j.open()
	for range turns {
		j.turn()
	}
}

// calm is a round trip without loss. It reports whether the client accepted the segment and the
// server read its timestamp.
func (j *journey) calm() (accepted, exact bool) {
	j.now += 1 + j.n.Half()/64
	j.deliver()
	if h, evc := j.host.(*evcHost); evc && h.Kind == EVCEmpty {
		j.host.echo(j.client.recent.w)
	}
	s := j.send(j.base + j.now)
	accepted, _ = j.client.take(s, true)
	return accepted, j.host.echo(j.client.recent.w) == j.client.recent.t
}

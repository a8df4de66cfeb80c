package cookie

// EVCKind says how far a connection's stamps have come.
type EVCKind uint8

const (
	// EVCEmpty: nothing is known; what its server sends is left as it is.
	EVCEmpty EVCKind = iota
	// EVCOpening: its server sent a SYN-ACK. Nobody has shown that the client is there.
	EVCOpening
	// EVCLost: the state was made of an echo alone; the server has not sent since.
	EVCLost
	// EVCLive: the client echoed a stamp with a valid cookie.
	EVCLive
)

// EVC is the epoch-anchored virtual clock of one connection (protocol section 1.3): what stamps of its server become, and what the client's echoes of them
// stand for. The client sees a clock that stands still rather than be Half or more ahead of what it last echoed, so that its test for old segments
// (PAWS, RFC 7323 section 5) passes after any silence. The C twin is struct evc of bpf/abi/host_cookie.h with bpf/lib/evc.h.
//
// T is a timestamp of the server, V a virtual one, W a stamp on the wire. Times are compared as signed 32-bit differences. Invariants of a live one:
// 0 <= VLast - VEcho < Half; the client's TS.Recent lies between the two; VSwPrev <= VSw <= VLast.
type EVC struct {
	// V is T + Off from VSw on, and was T + OffPrev from VSwPrev to VSw.
	Off, OffPrev uint32
	VSw, VSwPrev uint32 // opening: VSw is the T of the first SYN-ACK
	VEcho        uint32 // the newest V that the client echoed
	VLast        uint32 // the newest V that was sent; opening: the T of the last SYN-ACK
	Cookie       uint16
	Former       uint16 // minting: the cookie before
	Kind         EVCKind
	Minting      bool // the client has not echoed Cookie yet
	Unsure       bool // made of an echo, and nothing sent since has come back
	Twice        bool // V = VSw was sent for more than one T
	TwicePrev    bool // V = VSwPrev was
}

// epochMost is how long V = T + Off goes on before VSw is moved: differences stay below 1 << 31, also in connections that live for weeks.
const epochMost = 1 << 30

// after tells whether a time is later than another.
func after(a, b uint32) bool { return int32(a-b) > 0 }

// later is the later of two times.
func later(a, b uint32) uint32 {
	if after(b, a) {
		return b
	}
	return a
}

// reach is how far VLast may be ahead of VEcho. With cookie 0 a stamp may be one tick late (Place).
func (n TimeBits) reach(cookie uint16) uint32 {
	if cookie == 0 {
		return n.Half() - 2
	}
	return n.Half() - 1
}

// half is the half of the clock that a time is in.
func (n TimeBits) half(v uint32) uint32 { return v >> (n - 1) & 1 }

// part is the lowest n bits of the V that a stamp was made of. What 1 was made of may be 0.
func (n TimeBits) part(w uint32) uint32 {
	if w == 1 {
		return 0
	}
	return n.Unplace(w)
}

// unwrap is the time with the lowest bits `part` that is `newest` or the last one before.
func (n TimeBits) unwrap(part, newest uint32) uint32 { return newest - (newest-part)&(2*n.Half()-1) }

// Answer stamps a SYN-ACK that the server sent at t with the cookie of its flow; again says that it repeats the one before. The stamp depends on time and
// cookie alone.
func (e *EVC) Answer(n TimeBits, t uint32, cookie uint16, again bool) uint32 {
	first := t
	if again && e.Kind != EVCEmpty {
		first = e.VSw
	}
	*e = EVC{Kind: EVCOpening, Cookie: cookie, VSw: first, VLast: t}
	return n.Place(t, uint32(cookie))
}

// Stamp stamps any other segment that the server sent at t. want is the cookie that the flow should have. Of an empty state there is none.
func (e *EVC) Stamp(n TimeBits, t uint32, want uint16) uint32 {
	switch e.Kind {
	case EVCEmpty:
		return t
	case EVCOpening:
		e.VLast = later(e.VLast, t)
		return n.Place(t, uint32(e.Cookie))
	case EVCLost:
		e.settle(t)
	}
	v := t + e.Off
	if after(e.VSw, v) {
		v, e.Twice = e.VSw, true
	} else if v-e.VSw >= epochMost {
		e.anchor(t, v)
	}
	most := e.most(n, want)
	if want != e.Cookie && !e.Minting && !e.Unsure && n.half(e.VEcho) == n.half(e.VLast) {
		v = e.remint(n, t, v, most, want)
		most = e.most(n, want)
	}
	if after(v, most) {
		v = e.hold(t, most)
	}
	e.VLast = later(e.VLast, v)
	return n.Place(v, uint32(e.Cookie))
}

// most is the latest V that may be sent: the client takes what is less than Half ahead of what it echoed, and a new cookie stays in its half of the
// clock until it was echoed (Theorem 3).
func (e *EVC) most(n TimeBits, want uint16) uint32 {
	most := e.VEcho + min(n.reach(e.Cookie), n.reach(want))
	if end := e.VSw | (n.Half() - 1); e.Minting && after(most, end) {
		return end
	}
	return most
}

// anchor makes v stand for t from now on.
func (e *EVC) anchor(t, v uint32) {
	off := v - t
	if v == e.VSw {
		e.Twice = e.Twice || off != e.Off
		e.Off = off
		return
	}
	twice := v == e.VLast && off != e.Off
	e.OffPrev, e.VSwPrev, e.TwicePrev = e.Off, e.VSw, e.Twice
	e.Off, e.VSw, e.Twice = off, v, twice
}

// hold is the V of a segment whose own would be too late: the next one, or the last one again.
func (e *EVC) hold(t, most uint32) uint32 {
	v := e.VLast
	switch {
	case after(most, v):
		v++
		e.anchor(t, v)
	case v == e.VSw:
		e.Twice = true
	default:
		e.anchor(t, v)
	}
	return v
}

// remint gives the flow another cookie if the clock is where that may be (Theorem 3), and returns the V of this segment: up within a half of the clock, down
// at the beginning of the next.
func (e *EVC) remint(n TimeBits, t, v, most uint32, want uint16) uint32 {
	if want > e.Cookie {
		if after(e.VLast, v) || after(v, most) || n.half(v) != n.half(e.VLast) {
			return v
		}
	} else {
		next := (e.VLast | (n.Half() - 1)) + 1
		if after(next, most) {
			return v
		}
		if after(next, v) || after(v, most) {
			v = next
		}
	}
	e.anchor(t, v)
	e.Former, e.Cookie, e.Minting = e.Cookie, want, true
	return v
}

// settle begins the clock of a state that was lost, as far ahead as the client takes it: wherever the clock was before, this is not behind.
func (e *EVC) settle(t uint32) {
	e.Kind, e.Unsure = EVCLive, true
	e.Off, e.VSw, e.Twice = e.VLast-t, e.VLast, true
	e.OffPrev, e.VSwPrev, e.TwicePrev = e.Off, e.VSw, true
}

// Echo takes the stamp w that the client echoes, not 0, and returns the T that the server is to read: that of the segment whose stamp it is, or 0 for "no
// echo". ours is false when the cookie is not that of this state: then, if it is that of the flow under a key that is live, Rebuild is due, else the
// echo is to be left as it is. Stamp 1 may be what 0 became: it is known what it says of V, but not of T.
func (e *EVC) Echo(n TimeBits, w uint32) (t uint32, ours bool) {
	cookie := uint16(n.Cookie(w))
	switch {
	case e.Kind == EVCEmpty:
		return 0, false
	case cookie == e.Cookie:
	case e.Minting && cookie == e.Former:
	default:
		return 0, e.Kind == EVCLive && !e.Unsure
	}
	switch e.Kind {
	case EVCOpening:
		return e.open(n, w), true
	case EVCLost:
		e.relate(n, w)
		return 0, true
	}
	v := n.unwrap(n.part(w), e.VLast)
	old := e.VEcho - v
	e.VEcho = later(e.VEcho, v)
	if cookie == e.Cookie {
		e.Minting = false
		e.Unsure = e.Unsure && after(e.VSw, v)
	} else if cookie > e.Cookie && !after(e.VSw, v) {
		// A segment with the former cookie overtook the one that began the new, lower one. With that the client would read as older all that comes.
		e.Cookie, e.Minting = cookie, false
	}
	// Too old to be in time, or ahead of all that was sent.
	if int32(old) >= int32(n.Half()) || w == 1 {
		return 0, true
	}
	return e.sent(v), true
}

// sent is the T of the segment that V was sent with, 0 when there were several or it is not known.
func (e *EVC) sent(v uint32) uint32 {
	switch {
	case after(v, e.VSw):
		return v - e.Off
	case v == e.VSw:
		if e.Twice {
			return 0
		}
		return v - e.Off
	case after(e.VSwPrev, v), v == e.VSwPrev && e.TwicePrev:
		return 0
	}
	return v - e.OffPrev
}

// open takes the first echo: of a SYN-ACK that was sent from VSw to VLast.
func (e *EVC) open(n TimeBits, w uint32) uint32 {
	first, last, part := e.VSw, e.VLast, n.part(w)
	t := n.unwrap(part, last)
	if last-first >= 2*n.Half() && t != last {
		// Stamps came round since: only the ends are known.
		t = first
		if n.unwrap(part, first) != first {
			e.Rebuild(n, w)
			return 0
		}
	}
	if w == 1 && t+1 == first {
		t = first
	}
	if after(first, t) {
		return 0 // of a connection before
	}
	*e = EVC{Kind: EVCLive, Cookie: e.Cookie, VSw: first, VSwPrev: first, VEcho: t, VLast: last}
	if e.VLast-t > n.reach(e.Cookie) {
		e.VLast = t + n.reach(e.Cookie)
	}
	if w == 1 {
		return 0
	}
	return t
}

// relate takes an echo from which nothing was sent yet.
func (e *EVC) relate(n TimeBits, w uint32) {
	v := n.unwrap(n.part(w), e.VEcho+n.Half()-1)
	e.VEcho = later(e.VEcho, v)
	e.VLast = e.VEcho + n.reach(e.Cookie)
}

// Rebuild makes a state of an echo alone, whose cookie is the flow's: the one before was lost. The server is to read 0.
func (e *EVC) Rebuild(n TimeBits, w uint32) {
	v, cookie := n.part(w), uint16(n.Cookie(w))
	*e = EVC{Kind: EVCLost, Cookie: cookie, VEcho: v, VLast: v + n.reach(cookie)}
}

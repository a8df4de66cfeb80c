package cookie

// EVCKind is the state of a connection's stamps.
type EVCKind uint8

const (
	// EVCEmpty: no state; segments of the server are left unchanged.
	EVCEmpty EVCKind = iota
	// EVCOpening: the server sent a SYN-ACK. The client is not confirmed yet.
	EVCOpening
	// EVCLost: the state was rebuilt from an echo alone; the server has not sent since.
	EVCLost
	// EVCLive: the client echoed a stamp with a valid cookie.
	EVCLive
)

// EVC is the epoch-anchored virtual clock of one connection (protocol section 1.3): it maps
// timestamps of the server to stamps, and the client's echoes back. The clock seen by the client
// stops rather than be Half or more ahead of its last echo, so that the client's test for old
// segments (PAWS, RFC 7323 section 5) passes after any silence. The C twin is struct evc of
// bpf/abi/host_cookie.h with bpf/lib/evc.h.
//
// T is a timestamp of the server, V a virtual one, W a stamp on the wire. Times are compared as
// signed 32-bit differences. Invariants in state EVCLive: 0 <= VLast - VEcho < Half; the client's
// TS.Recent lies between the two; VSwPrev <= VSw <= VLast.
type EVC struct {
	// V is T + Off from VSw on, and was T + OffPrev from VSwPrev to VSw.
	Off, OffPrev uint32
	VSw, VSwPrev uint32 // EVCOpening: VSw is the T of the first SYN-ACK
	VEcho        uint32 // the newest V that the client echoed
	VLast        uint32 // the newest V that was sent; EVCOpening: the T of the last SYN-ACK
	Cookie       uint16
	Former       uint16 // while Minting: the previous cookie
	Kind         EVCKind
	Minting      bool // the client has not echoed Cookie yet
	Unsure       bool // rebuilt from an echo, and no segment sent since has been echoed
	Twice        bool // V = VSw was sent for more than one T
	TwicePrev    bool // V = VSwPrev was sent for more than one T
}

// epochMost is how long V = T + Off is used before VSw moves, so that differences stay below 1 <<
// 31 also in connections that last for weeks.
const epochMost = 1 << 30

// after reports whether a time is later than another.
func after(a, b uint32) bool { return int32(a-b) > 0 }

// later returns the later of two times.
func later(a, b uint32) uint32 {
	if after(b, a) {
		return b
	}
	return a
}

// reach returns how far VLast may be ahead of VEcho. With cookie 0 a stamp may be one tick late
// (Place).
func (n TimeBits) reach(cookie uint16) uint32 {
	if cookie == 0 {
		return n.Half() - 2
	}
	return n.Half() - 1
}

// half returns the half of the clock that contains a time.
func (n TimeBits) half(v uint32) uint32 { return v >> (n - 1) & 1 }

// part returns the lowest n bits of the V that a stamp was made from. For stamp 1 that may have
// been 0.
func (n TimeBits) part(w uint32) uint32 {
	if w == 1 {
		return 0
	}
	return n.Unplace(w)
}

// unwrap returns the latest time up to `newest` with the lowest bits `part`.
func (n TimeBits) unwrap(part, newest uint32) uint32 { return newest - (newest-part)&(2*n.Half()-1) }

// Answer stamps a SYN-ACK that the server sent at t with the cookie of its flow; again means that
// it repeats the previous one. The stamp depends only on time and cookie.
func (e *EVC) Answer(n TimeBits, t uint32, cookie uint16, again bool) uint32 {
	first := t
	if again && e.Kind != EVCEmpty {
		first = e.VSw
	}
	*e = EVC{Kind: EVCOpening, Cookie: cookie, VSw: first, VLast: t}
	return n.Place(t, uint32(cookie))
}

// Stamp stamps any other segment that the server sent at t. want is the wanted cookie of the flow.
// In state EVCEmpty it returns t.
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

// most returns the latest V that may be sent: the client accepts a V that is less than Half ahead
// of its last echo, and a new cookie stays in its half of the clock until it is echoed (Theorem 3).
func (e *EVC) most(n TimeBits, want uint16) uint32 {
	most := e.VEcho + min(n.reach(e.Cookie), n.reach(want))
	if end := e.VSw | (n.Half() - 1); e.Minting && after(most, end) {
		return end
	}
	return most
}

// anchor maps t to v from now on.
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

// hold returns the V of a segment whose own V would be too late: the next one, or the last one
// again.
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

// remint changes the flow's cookie if the clock is at a point where that is allowed (Theorem 3),
// and returns the V of this segment: to a higher cookie within a half of the clock, to a lower one
// at the beginning of the next half.
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

// settle starts the clock of a rebuilt state, as far ahead as the client accepts, so that it is not
// behind the lost clock.
func (e *EVC) settle(t uint32) {
	e.Kind, e.Unsure = EVCLive, true
	e.Off, e.VSw, e.Twice = e.VLast-t, e.VLast, true
	e.OffPrev, e.VSwPrev, e.TwicePrev = e.Off, e.VSw, true
}

// Echo processes the stamp w that the client echoes, not 0, and returns the T for the server to
// read: that of the stamped segment, or 0 for "no echo". ours is false if the cookie is not that of
// this state and the state is not certain (EVCLive and not Unsure). If the cookie is then valid for
// the flow under a live key, the caller must call Rebuild, else leave the echo unchanged. Stamp 1
// may be a changed 0: its V is known, but not its T.
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
		// A segment with the previous cookie overtook the first one of the new, lower cookie. With
		// the lower cookie, the client would consider all later segments older.
		e.Cookie, e.Minting = cookie, false
	}
	// Too old, or ahead of every V that was sent.
	if int32(old) >= int32(n.Half()) || w == 1 {
		return 0, true
	}
	return e.sent(v), true
}

// sent returns the T of the segment that V was sent with, 0 if there were several or it is unknown.
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

// open processes the first echo: of a SYN-ACK that was sent from VSw to VLast.
func (e *EVC) open(n TimeBits, w uint32) uint32 {
	first, last, part := e.VSw, e.VLast, n.part(w)
	t := n.unwrap(part, last)
	if last-first >= 2*n.Half() && t != last {
		// Stamps wrapped since: only the ends are known.
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
		return 0 // from an earlier connection
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

// relate processes an echo in state EVCLost, before anything was sent.
func (e *EVC) relate(n TimeBits, w uint32) {
	v := n.unwrap(n.part(w), e.VEcho+n.Half()-1)
	e.VEcho = later(e.VEcho, v)
	e.VLast = e.VEcho + n.reach(e.Cookie)
}

// Rebuild creates a state from an echo alone, whose cookie is the flow's, after the state was lost.
// The server must read 0.
func (e *EVC) Rebuild(n TimeBits, w uint32) {
	v, cookie := n.part(w), uint16(n.Cookie(w))
	*e = EVC{Kind: EVCLost, Cookie: cookie, VEcho: v, VLast: v + n.reach(cookie)}
}

package host

import (
	"hash/maphash"
	"net/netip"
	"time"
)

const (
	// waitingPatience is how long a packet waits for a port: by then there is a lease, or its
	// sender has retransmitted it (RFC 6298 section 2).
	waitingPatience = 3 * time.Second
	// waitingLatest is the longest delay of a packet that was redirected before ports arrived.
	waitingLatest = time.Second
)

// waiting holds the packets of connections that have no port yet, for each DIP in order of arrival.
// A packet that is sent on returns if there is no port for it after all. Then it waits again, but
// its total time does not grow. waiting has no clock, and is not safe for concurrent use.
type waiting struct {
	most int // maximum number of packets of a DIP
	seed maphash.Seed
	dips map[netip.Addr]*waitingRoom
	sent map[uint64]sentOn // by the hash of the frame
	turn uint64            // number of times that any DIP got ports
}

// waitingRoom holds the packets of a DIP.
type waitingRoom struct {
	frames []waitingFrame
	// turn and at are the turn and the time when the DIP last got ports.
	turn uint64
	at   time.Time
	// heard is when the last frame arrived.
	heard time.Time
}

type waitingFrame struct {
	frame []byte
	until time.Time
	turn  uint64 // in which it was last sent on; 0: never
}

type sentOn struct {
	until time.Time
	turn  uint64
}

func newWaiting(most int) *waiting {
	return &waiting{most: most, seed: maphash.MakeSeed(), dips: map[netip.Addr]*waitingRoom{}, sent: map[uint64]sentOn{}}
}

// waitingDIP returns the sender of a frame; false: it is not IPv4.
func waitingDIP(frame []byte) (netip.Addr, bool) {
	if len(frame) < 34 || frame[12] != 8 || frame[13] != 0 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(frame[26:30])), true
}

func (w *waiting) room(dip netip.Addr) *waitingRoom {
	r := w.dips[dip]
	if r == nil {
		r = &waitingRoom{}
		w.dips[dip] = r
	}
	return r
}

// arrive adds a frame for which there was no port, and owns it from then on. It returns the frames
// of the DIP to be sent on now; false: there is no room for the frame.
func (w *waiting) arrive(dip netip.Addr, frame []byte, now time.Time) (send [][]byte, ok bool) {
	r := w.room(dip)
	r.heard = now
	if len(r.frames) >= w.most {
		return nil, false
	}
	f := waitingFrame{frame: frame, until: now.Add(waitingPatience)}
	key := maphash.Bytes(w.seed, frame)
	if before, again := w.sent[key]; again && now.Before(before.until) {
		f.until, f.turn = before.until, before.turn
		delete(w.sent, key)
	}
	r.frames = append(r.frames, f)
	// Ports may have arrived while the frame was on its way. Each frame is sent on once for each
	// arrival of ports.
	if now.Sub(r.at) < waitingLatest && f.turn < r.turn {
		return w.release(r), true
	}
	return nil, true
}

// ports records that a DIP got ports, and returns the frames to send on now, in order.
func (w *waiting) ports(dip netip.Addr, now time.Time) [][]byte {
	r := w.room(dip)
	w.turn++
	r.turn, r.at = w.turn, now
	return w.release(r)
}

// release removes and returns the frames that were not sent on since the DIP last got ports.
func (w *waiting) release(r *waitingRoom) (send [][]byte) {
	rest := r.frames[:0]
	for _, f := range r.frames {
		if f.turn >= r.turn {
			rest = append(rest, f)
			continue
		}
		send = append(send, f.frame)
		w.sent[maphash.Bytes(w.seed, f.frame)] = sentOn{f.until, r.turn}
	}
	clear(r.frames[len(rest):])
	r.frames = rest
	return send
}

// settled returns how many packets of a DIP wait; false: some may still be on their way.
func (w *waiting) settled(dip netip.Addr, now time.Time) (n int, ok bool) {
	r := w.dips[dip]
	if r == nil {
		return 0, true
	}
	return len(r.frames), now.Sub(r.heard) >= waitingLatest
}

// expire drops packets that waited for too long, and returns their number by DIP.
func (w *waiting) expire(now time.Time) map[netip.Addr]int {
	for key, s := range w.sent {
		if !now.Before(s.until) {
			delete(w.sent, key)
		}
	}
	var out map[netip.Addr]int
	for dip, r := range w.dips {
		n := 0
		rest := r.frames[:0]
		for _, f := range r.frames {
			if now.Before(f.until) {
				rest = append(rest, f)
			} else {
				n++
			}
		}
		clear(r.frames[len(rest):])
		r.frames = rest
		if n > 0 {
			if out == nil {
				out = map[netip.Addr]int{}
			}
			out[dip] = n
		}
		if len(rest) == 0 && now.Sub(r.at) >= waitingLatest && now.Sub(r.heard) >= waitingLatest {
			delete(w.dips, dip)
		}
	}
	return out
}

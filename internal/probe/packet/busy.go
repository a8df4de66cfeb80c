package packet

import "time"

// busyRest is the longest time between two failed attempts on a device that count as one busy
// period.
const busyRest = 2 * time.Second

// busy holds since when devices have accepted no frame. In the zero value none is busy.
type busy struct{ devices map[int32]refusals }

// refusals holds the first and the last time, in nanoseconds, that a device accepted no frame.
type refusals struct{ first, last int64 }

// passed records that frames were accepted.
func (b *busy) passed(frames []Frame) {
	if len(b.devices) == 0 {
		return
	}
	for _, f := range frames {
		delete(b.devices, f.Ifindex)
	}
}

// refused records that a device accepted no frame, and returns for how long it has not.
func (b *busy) refused(ifindex int32, now int64) time.Duration {
	if b.devices == nil {
		b.devices = map[int32]refusals{}
	}
	r, was := b.devices[ifindex]
	if !was || now-r.last > int64(busyRest) {
		r.first = now
	}
	r.last = now
	b.devices[ifindex] = r
	return time.Duration(now - r.first)
}

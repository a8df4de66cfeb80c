package packet

import "time"

// busyRest is how long nothing may be tried on a device for it to count as busy all the while.
const busyRest = 2 * time.Second

// busy is since when devices take nothing. The zero value has none that is busy.
type busy struct{ devices map[int32]refusals }

// refusals are the first and the last time, in nanoseconds, that a device took nothing.
type refusals struct{ first, last int64 }

// passed notes that frames went.
func (b *busy) passed(frames []Frame) {
	if len(b.devices) == 0 {
		return
	}
	for _, f := range frames {
		delete(b.devices, f.Ifindex)
	}
}

// refused notes that a device took nothing, and tells for how long it has not.
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

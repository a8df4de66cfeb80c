package packet

// entry names a probe; gen tells it from later ones of the same number.
type entry struct{ id, gen uint32 }

// wheel keeps entries until their time, to the millisecond. Those far ahead come early, and have to be put in again.
type wheel struct {
	slots [wheelSlots][]entry
	now   int64 // slots before this millisecond are empty
	n     int
}

// wheelSlots is the span of the wheel in milliseconds.
const wheelSlots = 1024

// millisecond is the resolution of the wheel in nanoseconds.
const millisecond = 1_000_000

// add puts an entry in for time `at` in nanoseconds.
func (w *wheel) add(e entry, at int64) {
	slot := (at + millisecond - 1) / millisecond
	slot = min(max(slot, w.now), w.now+wheelSlots-1)
	w.slots[slot%wheelSlots] = append(w.slots[slot%wheelSlots], e)
	w.n++
}

// due takes out what is due by `now` in nanoseconds. f may add.
func (w *wheel) due(now int64, f func(entry)) {
	end := now / millisecond
	if w.n == 0 {
		w.now = max(w.now, end)
		return
	}
	for ; w.now <= end && w.n > 0; w.now++ {
		at := &w.slots[w.now%wheelSlots]
		// What is added meanwhile for this very millisecond is met too: it is behind.
		for i := 0; i < len(*at); i++ {
			w.n--
			f((*at)[i])
		}
		*at = (*at)[:0]
	}
	w.now = max(w.now, end)
}

// next is when something is due, in nanoseconds; false: nothing ever is.
func (w *wheel) next() (int64, bool) {
	if w.n == 0 {
		return 0, false
	}
	for i := range int64(wheelSlots) {
		if len(w.slots[(w.now+i)%wheelSlots]) > 0 {
			return (w.now + i) * millisecond, true
		}
	}
	panic("a wheel counts what it does not have")
}

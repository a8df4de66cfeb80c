package packet

// entry identifies a probe; gen distinguishes it from later ones of the same number.
type entry struct{ id, gen uint32 }

// wheel holds entries until their time, with a resolution of a millisecond. Entries more than
// wheelSlots ahead fire early, and have to be added again.
type wheel struct {
	slots [wheelSlots][]entry
	now   int64 // slots before this millisecond are empty
	n     int
}

// wheelSlots is the span of the wheel in milliseconds.
const wheelSlots = 1024

// millisecond is the resolution of the wheel in nanoseconds.
const millisecond = 1_000_000

// add adds an entry for time `at` in nanoseconds.
func (w *wheel) add(e entry, at int64) {
	slot := (at + millisecond - 1) / millisecond
	slot = min(max(slot, w.now), w.now+wheelSlots-1)
	w.slots[slot%wheelSlots] = append(w.slots[slot%wheelSlots], e)
	w.n++
}

// due removes the entries due by `now` in nanoseconds and passes each to f, which may add entries.
func (w *wheel) due(now int64, f func(entry)) {
	end := now / millisecond
	if w.n == 0 {
		w.now = max(w.now, end)
		return
	}
	for ; w.now <= end && w.n > 0; w.now++ {
		at := &w.slots[w.now%wheelSlots]
		// The loop also reaches entries that f adds for this millisecond, because they are
		// appended.
		for i := 0; i < len(*at); i++ {
			w.n--
			f((*at)[i])
		}
		*at = (*at)[:0]
	}
	w.now = max(w.now, end)
}

// next returns when the next entry is due, in nanoseconds; false: there is none.
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

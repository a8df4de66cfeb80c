// Package wheel is a hierarchical timing wheel (Varghese and Lauck, 1987): numbers that are due at
// ticks. Adding, removing and firing take constant time and do not allocate. It is pure: the caller
// defines a tick and decides when one has passed.
package wheel

import "math/bits"

const (
	levelBits  = 8
	levelSlots = 1 << levelBits
	levels     = 4
	// Horizon is how many ticks ahead the slots reach. A number due later is put into a slot at
	// Horizon and placed again from there.
	Horizon = 1<<(levelBits*levels) - 1<<(levelBits*(levels-1))
	none    = ^uint32(0)
)

// Wheel holds each of a dense set of numbers at most once. The zero value is not ready: see New.
type Wheel struct {
	now   uint64
	count int
	heads [levels][levelSlots]uint32
	full  [levels][levelSlots / 64]uint64 // one bit for each slot that is not empty
	links []link
	far   map[uint32]uint64 // due ticks of numbers more than Horizon ahead
}

// link is a number's place in the ring of the numbers in the same slot.
type link struct {
	// at is the lower bits of the due tick, which is now or less than 1<<32 ahead, or in far.
	at         uint32
	next, prev uint32
	slot       uint16 // level<<levelBits | slot
	held       bool
}

// New returns an empty wheel at a tick.
func New(now uint64) *Wheel {
	w := &Wheel{now: now}
	for l := range w.heads {
		for s := range w.heads[l] {
			w.heads[l][s] = none
		}
	}
	return w
}

// Len returns how many numbers are held.
func (w *Wheel) Len() int { return w.count }

// Now returns the tick up to which everything has fired.
func (w *Wheel) Now() uint64 { return w.now }

// Holds reports whether a number is held.
func (w *Wheel) Holds(id uint32) bool { return int(id) < len(w.links) && w.links[id].held }

// Add holds a number until a tick; one that has passed counts as the next. The number must not be
// held. Add allocates memory for all numbers below it.
func (w *Wheel) Add(id uint32, at uint64) {
	if int(id) >= len(w.links) {
		w.Expect(int(id) + 1)
		w.links = w.links[:int(id)+1]
	}
	if w.links[id].held {
		panic("wheel: a number is added twice")
	}
	w.count++
	w.put(id, max(at, w.now+1))
}

// Expect makes room for all numbers below n: exactly n if n is large, an eighth more than now if n
// is small.
func (w *Wheel) Expect(n int) {
	if n > cap(w.links) {
		w.links = append(make([]link, 0, max(n, cap(w.links)+cap(w.links)/8)), w.links...)
	}
}

// put places a number that is due after now, or at now while now's slots are emptied.
func (w *Wheel) put(id uint32, at uint64) {
	ahead, place := at-w.now, at
	if ahead > Horizon {
		ahead, place = Horizon, w.now+Horizon
	}
	level := 0
	for ahead >= levelSlots {
		ahead >>= levelBits
		level++
	}
	slot := place >> (levelBits * level) & (levelSlots - 1)
	l := &w.links[id]
	switch {
	case at-w.now > Horizon:
		if w.far == nil {
			w.far = map[uint32]uint64{}
		}
		w.far[id] = at
	case len(w.far) > 0:
		delete(w.far, id)
	}
	l.at, l.slot, l.held = uint32(at), uint16(level<<levelBits)|uint16(slot), true
	head := &w.heads[level][slot]
	if *head == none {
		l.next, l.prev = id, id
		*head = id
		w.full[level][slot/64] |= 1 << (slot % 64)
		return
	}
	first := &w.links[*head]
	l.next, l.prev = *head, first.prev
	w.links[first.prev].next = id
	first.prev = id
}

// Remove removes a number if it is held.
func (w *Wheel) Remove(id uint32) {
	if w.Holds(id) {
		w.count--
		w.take(id)
		delete(w.far, id)
	}
}

// at returns when a number is due.
func (w *Wheel) at(id uint32) uint64 {
	if at, far := w.far[id]; far {
		return at
	}
	return w.now + uint64(w.links[id].at-uint32(w.now))
}

func (w *Wheel) take(id uint32) {
	l := &w.links[id]
	l.held = false
	level, slot := l.slot>>levelBits, l.slot&(levelSlots-1)
	if l.next == id {
		w.heads[level][slot] = none
		w.full[level][slot/64] &^= 1 << (slot % 64)
		return
	}
	w.links[l.next].prev, w.links[l.prev].next = l.prev, l.next
	if w.heads[level][slot] == id {
		w.heads[level][slot] = l.next
	}
}

// Advance moves to a tick. It removes the numbers due up to it and passes them to due, in the order
// of their ticks. due may add and remove numbers.
func (w *Wheel) Advance(to uint64, due func(id uint32, at uint64)) {
	for w.now < to {
		next, some := w.Next()
		if !some || next > to {
			w.now = to
			return
		}
		w.now = next
		for level := levels - 1; level > 0; level-- {
			if next&(1<<(levelBits*level)-1) == 0 {
				w.cascade(level)
			}
		}
		head := &w.heads[0][next&(levelSlots-1)]
		for *head != none {
			id := *head
			w.take(id)
			w.count--
			due(id, w.at(id))
		}
	}
}

// cascade spreads the slot of a level that begins now over the levels below.
func (w *Wheel) cascade(level int) {
	head := &w.heads[level][w.now>>(levelBits*level)&(levelSlots-1)]
	// A number that returns to the same slot, a turn ahead, is placed behind the last of those
	// there now.
	if *head == none {
		return
	}
	for last := w.links[*head].prev; ; {
		id := *head
		w.take(id)
		w.put(id, w.at(id))
		if id == last {
			return
		}
	}
}

// Next returns a tick after now before which nothing is due; false: nothing is held.
func (w *Wheel) Next() (uint64, bool) {
	if w.count == 0 {
		return 0, false
	}
	best, some := uint64(0), false
	for level := range levels {
		// The slot of now itself is a whole turn ahead on the levels above the first.
		shift := levelBits * level
		base := w.now >> shift
		ahead, ok := w.ahead(level, base&(levelSlots-1))
		if !ok {
			continue
		}
		if at := (base + ahead) << shift; !some || at < best {
			best, some = at, true
		}
	}
	return best, some
}

// ahead returns the distance, 1 to levelSlots, from a slot of a level to the next that is not
// empty.
func (w *Wheel) ahead(level int, slot uint64) (uint64, bool) {
	full := &w.full[level]
	first := (slot + 1) & (levelSlots - 1)
	for i := range uint64(levelSlots/64 + 1) {
		word := (first/64 + i) & (levelSlots/64 - 1)
		set := full[word]
		switch {
		case i == 0:
			set &= ^uint64(0) << (first % 64)
		case i == levelSlots/64:
			set &= 1<<(first%64) - 1
		}
		if set != 0 {
			at := word*64 + uint64(bits.TrailingZeros64(set))
			return (at-first)&(levelSlots-1) + 1, true
		}
	}
	return 0, false
}

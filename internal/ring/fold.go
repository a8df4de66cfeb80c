package ring

// NoFormer in Turns marks a slot without another owner, and the owner of a slot in a ring without
// members.
const NoFormer = 1<<16 - 1

// Turns is the history of a slot over several rings: its current owner in the lower half, the last
// different owner in the upper half (design section 9.4). NoFormer: there is none.
type Turns uint32

// Current returns the owner in the newest ring.
func (t Turns) Current() uint16 { return uint16(t) }

// Former returns the last different owner.
func (t Turns) Former() uint16 { return uint16(t >> 16) }

// Folded is a table of several rings of one endpoint.
type Folded struct {
	// Code is the largest of the rings' size codes: the table has 1<<Code slots. A slot of a
	// smaller ring covers several consecutive slots, because a slot is the highest bits of the
	// flow's hash (Slot).
	Code  uint8
	Slots []Turns
}

// Fold returns the table of an endpoint's rings, oldest first; the last is the current one. The
// result depends only on the rings. A ring without slots has no owners: nothing is displaced from
// it, and earlier owners stay the previous ones. A member of the current ring may be the previous
// owner of other slots. Lengths of rings are powers of two up to 1<<CodeMax.
func Fold(rings ...[]uint16) Folded {
	f := Folded{Code: CodeMin}
	for _, r := range rings {
		for len(r) > 1<<f.Code {
			f.Code++
		}
	}
	f.Slots = make([]Turns, 1<<f.Code)
	for i := range f.Slots {
		f.Slots[i] = NoFormer<<16 | NoFormer
	}
	for i, r := range rings {
		last := i == len(rings)-1
		switch {
		case len(r) == len(f.Slots):
			f.add(r)
		case len(r) > 0:
			f.addSmaller(r)
		case last:
			f.empty()
		}
	}
	return f
}

// FoldRotated returns the table of a ring for flows that were hashed with another key. Its slots
// have only previous owners, because the current owner of a flow depends on another hash.
func FoldRotated(r []uint16) Folded {
	f := Folded{Code: CodeMin}
	for len(r) > 1<<f.Code {
		f.Code++
	}
	f.Slots = make([]Turns, 1<<f.Code)
	for i := range f.Slots {
		f.Slots[i] = NoFormer<<16 | NoFormer
	}
	if len(r) == 0 {
		return f
	}
	each := len(f.Slots) / len(r)
	for i := range f.Slots {
		f.Slots[i] = Turns(r[i/each])<<16 | NoFormer
	}
	return f
}

// add adds the next ring, which has as many slots.
func (f *Folded) add(r []uint16) {
	slots := f.Slots[:len(r)]
	for i, owner := range r {
		slots[i] = slots[i].next(owner)
	}
}

// addSmaller adds the next ring, which has fewer slots.
func (f *Folded) addSmaller(r []uint16) {
	wide := len(f.Slots) / len(r)
	for i, owner := range r {
		for j := range f.Slots[i*wide : (i+1)*wide] {
			slot := &f.Slots[i*wide+j]
			*slot = slot.next(owner)
		}
	}
}

// empty adds a current ring without members.
func (f *Folded) empty() {
	for i, t := range f.Slots {
		if t.Current() != NoFormer {
			f.Slots[i] = t<<16 | NoFormer
		}
	}
}

// next returns the slot with its owner in the next ring, without a branch, because the branch would
// be unpredictable.
func (t Turns) next(owner uint16) Turns {
	moved := t<<16 | Turns(owner)
	same := Turns(0)
	if uint16(t) == owner {
		same = ^Turns(0)
	}
	return t&same | moved&^same
}

package ring

// NoFormer stands in a Turn for a slot that had no other owner, and for the owner of a slot in a ring without members.
const NoFormer = 1<<16 - 1

// Turns are what became of a slot over several rings: its owner now in the lower half, the last owner that was another in the
// upper half (design section 9.4). NoFormer: there is none.
type Turns uint32

// Current is the owner in the newest ring.
func (t Turns) Current() uint16 { return uint16(t) }

// Former is the last owner before that was another.
func (t Turns) Former() uint16 { return uint16(t >> 16) }

// Folded are rings of one endpoint folded into one table.
type Folded struct {
	// Code is the largest of the rings' size codes: the table has 1<<Code slots. A slot of a smaller ring is as many slots of it, one
	// behind the other, for a slot is the highest bits of the flow's hash (Slot).
	Code  uint8
	Slots []Turns
}

// Fold makes the table of an endpoint's rings, oldest first; the last is the present one. The result depends on nothing else. A ring
// without slots is one of which no slot has an owner: nothing is displaced from it, and what was before stays the former owner.
// A member of the present ring may be the former owner of other slots. Lengths of rings are powers of two up to 1<<CodeMax.
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

// FoldRotated makes the table of a ring that flows were hashed for with another key than now. Its slots have former owners alone: where a flow goes now
// is not known from them.
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

// add takes in the next ring, which has as many slots.
func (f *Folded) add(r []uint16) {
	slots := f.Slots[:len(r)]
	for i, owner := range r {
		slots[i] = slots[i].next(owner)
	}
}

// addSmaller takes in the next ring, which has fewer slots.
func (f *Folded) addSmaller(r []uint16) {
	wide := len(f.Slots) / len(r)
	for i, owner := range r {
		for j := range f.Slots[i*wide : (i+1)*wide] {
			slot := &f.Slots[i*wide+j]
			*slot = slot.next(owner)
		}
	}
}

// empty takes in a present ring without members.
func (f *Folded) empty() {
	for i, t := range f.Slots {
		if t.Current() != NoFormer {
			f.Slots[i] = t<<16 | NoFormer
		}
	}
}

// next is the slot when its owner in the next ring is this one: without a branch, which nobody could predict.
func (t Turns) next(owner uint16) Turns {
	moved := t<<16 | Turns(owner)
	same := Turns(0)
	if uint16(t) == owner {
		same = ^Turns(0)
	}
	return t&same | moved&^same
}

package dataplane

import "iter"

// memberRefs are the backends of an endpoint's members, by id; nil: no such member.
type memberRefs []*backendRef

func (r memberRefs) get(id uint16) *backendRef {
	if int(id) >= len(r) {
		return nil
	}
	return r[id]
}

// set gives an id a backend, or none.
func (r *memberRefs) set(id uint16, b *backendRef) {
	if more := int(id) + 1 - len(*r); more > 0 {
		*r = append(*r, make(memberRefs, more)...)
	}
	(*r)[id] = b
}

// all are the members that there are, in the order of their ids.
func (r memberRefs) all() iter.Seq2[uint16, *backendRef] {
	return func(yield func(uint16, *backendRef) bool) {
		for id, b := range r {
			if b != nil && !yield(uint16(id), b) {
				return
			}
		}
	}
}

// holds says whether the members of an endpoint are as wanted. The alive bits are not the plan's.
func (t *muxTables) holds(e *muxEntry, w MuxEndpoint) bool {
	left := len(w.Members)
	for range e.members.all() {
		left--
	}
	if left != 0 {
		return false
	}
	for _, m := range w.Members {
		b := e.members.get(m.ID)
		if b == nil || b.backendKey != m.backendKey(w.carrier()) {
			return false
		}
		if choosable := load(t.word(e, m.ID))&memberChoosable != 0; choosable != m.Choosable {
			return false
		}
	}
	return true
}

package dataplane

import "hash/maphash"

// backendSet finds backend records by what they are made of. It is open-addressed and knows them by their index alone,
// since a map from such keys would take more memory than the records.
type backendSet struct {
	seed    maphash.Seed
	byIndex []*backendRef // nil: free
	// slots have the index + 1, 0 nothing; a record lies at its hash or after, with no gap between.
	slots []uint32
}

// newBackendSet has room for n records, a power of two.
func newBackendSet(n int) backendSet {
	return backendSet{seed: maphash.MakeSeed(), byIndex: make([]*backendRef, n), slots: make([]uint32, 2*n)}
}

// home is where the search for a key begins.
func (s *backendSet) home(k backendKey) int {
	return int(maphash.Comparable(s.seed, k)) & (len(s.slots) - 1)
}

// slot is where a key is, or should be.
func (s *backendSet) slot(k backendKey) int {
	at := s.home(k)
	for s.slots[at] != 0 && s.byIndex[s.slots[at]-1].backendKey != k {
		at = (at + 1) & (len(s.slots) - 1)
	}
	return at
}

// get is the record of a key, nil when there is none.
func (s *backendSet) get(k backendKey) *backendRef {
	if i := s.slots[s.slot(k)]; i != 0 {
		return s.byIndex[i-1]
	}
	return nil
}

// put adds a record. One of the same key is not found any more, but keeps its index.
func (s *backendSet) put(b *backendRef) {
	s.slots[s.slot(b.backendKey)] = b.index + 1
	s.byIndex[b.index] = b
}

// remove takes a record out.
func (s *backendSet) remove(b *backendRef) {
	mask := len(s.slots) - 1
	if gap := s.slot(b.backendKey); s.slots[gap] == b.index+1 {
		s.slots[gap] = 0
		for at := (gap + 1) & mask; s.slots[at] != 0; at = (at + 1) & mask {
			// What began its search at the gap or before closes it.
			if home := s.home(s.byIndex[s.slots[at]-1].backendKey); (at-home)&mask >= (at-gap)&mask {
				s.slots[gap], s.slots[at], gap = s.slots[at], 0, at
			}
		}
	}
	s.byIndex[b.index] = nil
}

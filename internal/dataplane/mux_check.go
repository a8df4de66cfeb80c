package dataplane

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// idSet is a set of member ids.
type idSet []uint64

// newIDSet is an empty set with room for ids below count.
func newIDSet(count int) idSet { return make(idSet, (count+63)/64) }

func (s idSet) has(id uint16) bool { return int(id>>6) < len(s) && s[id>>6]>>(id&63)&1 != 0 }

func (s idSet) add(id uint16) { s[id>>6] |= 1 << (id & 63) }

// idsOf are the ids of members.
func idsOf(members []MuxMember) idSet {
	count := 0
	for _, m := range members {
		count = max(count, int(m.ID)+1)
	}
	ids := newIDSet(count)
	for _, m := range members {
		ids.add(m.ID)
	}
	return ids
}

// checkMembers refuses members and rings that do not fit together.
func checkMembers(e MuxEndpoint) error {
	count := 0
	for _, m := range e.Members {
		count = max(count, int(m.ID)+1)
	}
	ids := newIDSet(count)
	for _, m := range e.Members {
		if ids.has(m.ID) {
			return fmt.Errorf("member %d: given twice", m.ID)
		}
		ids.add(m.ID)
		if !m.Outer.IsValid() {
			return fmt.Errorf("member %d: has no outer destination", m.ID)
		}
	}
	for _, r := range [2][]uint16{e.Ring, e.BackupRing} {
		if len(e.Members) == count && allBelow(r, count) {
			continue // every id below count is a member's
		}
		for slot, id := range r {
			if !ids.has(id) {
				return fmt.Errorf("ring slot %d: member %d is not among the members", slot, id)
			}
		}
	}
	return nil
}

// allBelow says whether all ids in a ring lie below count, four at a time. It may say no though they do.
func allBelow(ring []uint16, count int) bool {
	const high, each = 1 << 15, 0x0001_0001_0001_0001
	if count > high {
		return false
	}
	// An id below high becomes one from high on by the addition when it is count or more, and never reaches its neighbour.
	beyond, add := uint64(0), uint64(high-count)*each
	for _, ids := range wordsOf(ring) {
		beyond |= ids | (ids + add)
	}
	return beyond&(high*each) == 0 && len(ring)%slotsPerWord == 0
}

// checkEndpoints looks at every endpoint alone, on all CPUs: of several faults the first endpoint's is told.
func checkEndpoints(all []MuxEndpoint) error {
	faults := make([]error, len(all))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(all)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(all); i = next.Add(1) - 1 {
				if err := checkEndpoint(all[i]); err != nil {
					faults[i] = fmt.Errorf("endpoint %v: %w", all[i].Key, err)
				}
			}
		})
	}
	workers.Wait()
	if i := slices.IndexFunc(faults, func(err error) bool { return err != nil }); i >= 0 {
		return faults[i]
	}
	return nil
}

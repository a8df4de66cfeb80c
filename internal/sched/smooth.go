package sched

import "container/heap"

// Smooth orders shares to a sequence that may be gone round for ever: each member has as many places as its share, and after any number of places
// from the beginning every member had its part of them within less than one. nginx's smooth weighted round-robin, which gives whoever waited longest
// a place, can stray farther. Of members that are due alike the first goes first.
//
// It is worst-case fair queueing (WF2Q, Bennett and Zhang 1996) of packets of equal length: a member with share q of a sum L may take its place
// number j (from 0) from j·L/q on, which is when its part of the places so far is used up, and of those that may the one goes whose part would be
// used up first.
func Smooth(shares []Share) []uint16 {
	length := sum(shares)
	out := make([]uint16, 0, length)
	waits := make([][]turn, length) // by the place that they may be taken from
	due := make(turns, 0, len(shares))
	for i, s := range shares {
		if s.Share > 0 {
			due = append(due, turn{number: i}.of(s, length))
		}
	}
	heap.Init(&due)
	for at := range length {
		for _, t := range waits[at] {
			heap.Push(&due, t)
		}
		waits[at] = nil
		t := due[0]
		s := shares[t.number]
		out = append(out, s.ID)
		if t.taken++; t.taken == uint64(s.Share) {
			heap.Pop(&due)
			continue
		}
		t = t.of(s, length)
		if from := (t.taken*length + uint64(s.Share) - 1) / uint64(s.Share); from > at+1 {
			heap.Pop(&due)
			waits[from] = append(waits[from], t)
		} else {
			due[0] = t
			heap.Fix(&due, 0)
		}
	}
	return out
}

// turn is the next place of a member.
type turn struct {
	number int    // among the shares
	taken  uint64 // places that it had
	before uint64 // the place that it must have it before
}

// of is the turn with its end.
func (t turn) of(s Share, length uint64) turn {
	t.before = ((t.taken+1)*length + uint64(s.Share) - 1) / uint64(s.Share)
	return t
}

// turns is a heap of those that may be taken, the one due first on top.
type turns []turn

func (t turns) Len() int { return len(t) }
func (t turns) Less(i, j int) bool {
	return t[i].before < t[j].before || t[i].before == t[j].before && t[i].number < t[j].number
}
func (t turns) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(x any)   { *t = append(*t, x.(turn)) }
func (t *turns) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// Sequence is Smooth of what Fit makes of shares.
func Sequence(shares []Share) []uint16 { return Smooth(Fit(shares, MaxLength)) }

package sched

// Smooth orders shares to a sequence that can be repeated: each member has as many places as its
// share, and after any number of places from the beginning every member had its part of them, with
// an error of less than one. nginx's smooth weighted round-robin, which gives the next place to the
// member that waited longest, can deviate further. Of members that are due equally the first is
// placed first.
//
// It is worst-case fair queueing (WF2Q, Bennett and Zhang 1996) of packets of equal length: a
// member with share q of a sum L may take its place number j (from 0) from j·L/q on, when its part
// of the places so far is used up. Of the members that may take a place, the one whose part is used
// up first takes it.
func Smooth(shares []Share) []uint16 {
	length := sum(shares)
	out := make([]uint16, 0, length)
	waits := make([][]uint32, length) // members that may take a place from there on
	taken := make([]uint64, len(shares))
	due := make(turns, 0, len(shares))
	enter := func(number uint32) {
		q := uint64(shares[number].Share)
		due.push(((taken[number]+1)*length+q-1)/q<<32 | uint64(number))
	}
	for i, s := range shares {
		if s.Share > 0 {
			enter(uint32(i))
		}
	}
	for at := range length {
		for _, number := range waits[at] {
			enter(number)
		}
		number := uint32(due.pop())
		s := shares[number]
		out = append(out, s.ID)
		q := uint64(s.Share)
		if taken[number]++; taken[number] == q {
			continue
		}
		if from := (taken[number]*length + q - 1) / q; from > at+1 {
			waits[from] = append(waits[from], number)
		} else {
			enter(number)
		}
	}
	return out
}

// turns is a heap of members that may take a place, the one due first on top: the place that its
// part is used up at:32 | number among the shares:32.
type turns []uint64

func (t *turns) push(turn uint64) {
	h := append(*t, turn)
	i := len(h) - 1
	for ; i > 0 && turn < h[(i-1)/2]; i = (i - 1) / 2 {
		h[i] = h[(i-1)/2]
	}
	h[i] = turn
	*t = h
}

func (t *turns) pop() uint64 {
	h := *t
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if child >= len(h) || last <= h[child] {
			h[i] = last
			break
		}
		h[i], i = h[child], child
	}
	*t = h
	return top
}

// Sequence returns Smooth of the result of Fit.
func Sequence(shares []Share) []uint16 { return Smooth(Fit(shares, MaxLength)) }

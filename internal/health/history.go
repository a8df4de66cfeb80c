package health

import (
	"time"
	"unique"
)

// Limits of what a History keeps.
const (
	// KeptResults is the number of results, KeptTurns that of turns.
	KeptResults = 20
	KeptTurns   = 20
)

// Past is one result of a probe as it is remembered.
type Past struct {
	// At is when the probe began, to the millisecond, Took how long it was, to the microsecond and at most 71 minutes.
	At   time.Time
	Took time.Duration
	// Check is the number of the check among those of the endpoint.
	Check uint8
	// Good and Void are as in a probe's result.
	Good, Void bool
	Words      string
}

// Turn is a change of a member's health.
type Turn struct {
	At    time.Time
	Alive bool
	// Words are why.
	Words string
}

// History is the latest of what happened to a member: the results of its checks and the changes of its health. The zero value is an
// empty one. It is made for hundreds of thousands of members that get the same few answers again and again: a full one takes some
// 330 bytes, and next to none beside while the words stay the same.
type History struct {
	// newest is when the probe of the last result began, in milliseconds since 1970.
	newest int64
	// results are in a ring once there are KeptResults; next is the oldest one then.
	results []pastResult
	// said are the words that results name by their place in it; places that no result names are used again.
	said []unique.Handle[string]
	// turns are in a ring likewise, with nextTurn.
	turns          []turned
	next, nextTurn uint8
}

// pastResult is a Past in 12 bytes.
type pastResult struct {
	// after is how many milliseconds later than the result before it began.
	after int32
	// took is in microseconds.
	took  uint32
	words uint8
	// what holds the number of the check, and whether it was good or void.
	what uint8
}

// Bits of pastResult.what.
const (
	pastGood  = 1 << 7
	pastVoid  = 1 << 6
	pastCheck = pastVoid - 1
)

type turned struct {
	at    int64
	words unique.Handle[string]
	alive bool
}

// Add remembers a result, and forgets the oldest when there are KeptResults.
func (h *History) Add(p Past) {
	at := p.At.UnixMilli()
	r := pastResult{
		after: int32(min(max(at-h.newest, -1<<31), 1<<31-1)),
		took:  uint32(min(max(p.Took.Microseconds(), 0), 1<<32-1)),
		what:  p.Check & pastCheck,
	}
	if h.results == nil {
		h.results, r.after = make([]pastResult, 0, KeptResults), 0
	}
	h.newest = at
	if p.Good {
		r.what |= pastGood
	}
	if p.Void {
		r.what |= pastVoid
	}
	if len(h.results) < KeptResults {
		r.words = h.word(p.Words, len(h.results))
		h.results = append(h.results, r)
		return
	}
	r.words = h.word(p.Words, int(h.next))
	h.results[h.next] = r
	h.next = (h.next + 1) % KeptResults
}

// word is the place of words for the result that will be at `result`: where they are already, else one that no other result names.
func (h *History) word(words string, result int) uint8 {
	want := unique.Make(words)
	for i, have := range h.said {
		if have == want {
			return uint8(i)
		}
	}
	var named [KeptResults]bool
	for i, r := range h.results {
		named[r.words] = named[r.words] || i != result
	}
	for i := range h.said {
		if !named[i] {
			h.said[i] = want
			return uint8(i)
		}
	}
	h.said = append(h.said, want)
	return uint8(len(h.said) - 1)
}

// Turned remembers a change of the member's health.
func (h *History) Turned(t Turn) {
	next := turned{t.At.UnixMilli(), unique.Make(t.Words), t.Alive}
	if len(h.turns) < KeptTurns {
		h.turns = append(h.turns, next)
		return
	}
	h.turns[h.nextTurn] = next
	h.nextTurn = (h.nextTurn + 1) % KeptTurns
}

// Results are those that are remembered, oldest first.
func (h *History) Results() []Past {
	out := make([]Past, len(h.results))
	at := h.newest
	for i := len(out) - 1; i >= 0; i-- {
		r := h.results[(i+int(h.next))%len(out)]
		out[i] = Past{
			At: time.UnixMilli(at), Took: time.Duration(r.took) * time.Microsecond, Check: r.what & pastCheck,
			Good: r.what&pastGood != 0, Void: r.what&pastVoid != 0, Words: h.said[r.words].Value(),
		}
		at -= int64(r.after)
	}
	return out
}

// LastTurn is the last change of health; false: there was none.
func (h *History) LastTurn() (Turn, bool) {
	if len(h.turns) == 0 {
		return Turn{}, false
	}
	t := h.turns[(int(h.nextTurn)+len(h.turns)-1)%len(h.turns)]
	return Turn{time.UnixMilli(t.at), t.alive, t.words.Value()}, true
}

// Turns are the changes of health that are remembered, oldest first.
func (h *History) Turns() []Turn {
	out := make([]Turn, 0, len(h.turns))
	for i := range h.turns {
		t := h.turns[(i+int(h.nextTurn))%len(h.turns)]
		out = append(out, Turn{time.UnixMilli(t.at), t.alive, t.words.Value()})
	}
	return out
}

package health

import (
	"time"
	"unique"
)

// Limits of a History.
const (
	// KeptResults is the maximum number of results, KeptTurns that of transitions.
	KeptResults = 20
	KeptTurns   = 20
)

// Past is one result of a probe in a History.
type Past struct {
	// At is when the probe began, with millisecond precision. Took is its duration, with
	// microsecond precision and a maximum of 71 minutes.
	At   time.Time
	Took time.Duration
	// Check is the number of the check among those of the endpoint.
	Check uint8
	// Good and Void are as in a probe's result.
	Good, Void bool
	Words      string
}

// Turn is a transition of a member's health.
type Turn struct {
	At    time.Time
	Alive bool
	// Words is the reason.
	Words string
}

// History holds the latest results of a member's checks and the latest transitions of its health.
// The zero value is empty. It is designed for hundreds of thousands of members that get the same
// few results again and again: a full one takes some 330 bytes, and almost nothing more while the
// texts stay the same.
type History struct {
	// newest is when the probe of the last result began, in milliseconds since 1970.
	newest int64
	// results is a ring buffer after it has KeptResults entries; next is its oldest entry then.
	results []pastResult
	// said holds the texts of results, which store an index into it. Entries without a result are
	// reused.
	said []unique.Handle[string]
	// turns is a ring buffer likewise, with nextTurn.
	turns          []turned
	next, nextTurn uint8
}

// pastResult is a Past in 12 bytes.
type pastResult struct {
	// after is the time between the start of the previous probe and this one, in milliseconds.
	after int32
	// took is in microseconds.
	took  uint32
	words uint8
	// what holds the number of the check and the bits pastGood and pastVoid.
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

// Add appends a result and drops the oldest if there are KeptResults.
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

// word returns an index of said for the text of the result at index result: the existing entry of
// the same text, else an entry that no other result uses.
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

// Turned appends a transition of the member's health.
func (h *History) Turned(t Turn) {
	next := turned{t.At.UnixMilli(), unique.Make(t.Words), t.Alive}
	if len(h.turns) < KeptTurns {
		h.turns = append(h.turns, next)
		return
	}
	h.turns[h.nextTurn] = next
	h.nextTurn = (h.nextTurn + 1) % KeptTurns
}

// Results returns the results, oldest first.
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

// LastTurn returns the last transition; false: there was none.
func (h *History) LastTurn() (Turn, bool) {
	if len(h.turns) == 0 {
		return Turn{}, false
	}
	t := h.turns[(int(h.nextTurn)+len(h.turns)-1)%len(h.turns)]
	return Turn{time.UnixMilli(t.at), t.alive, t.words.Value()}, true
}

// Turns returns the transitions, oldest first.
func (h *History) Turns() []Turn {
	out := make([]Turn, 0, len(h.turns))
	for i := range h.turns {
		t := h.turns[(i+int(h.nextTurn))%len(h.turns)]
		out = append(out, Turn{time.UnixMilli(t.at), t.alive, t.words.Value()})
	}
	return out
}

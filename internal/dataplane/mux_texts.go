package dataplane

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrProbeRoom is wrapped where the tables of probes have no room, which may come: for a rule of this number, or for its texts.
var ErrProbeRoom = errors.New("no room")

// probeLine is the length of a line of texts.
const probeLine = int(muxProbeLimitLIMIT_PROBE_LINE)

// textStore keeps texts of which many rules have the same: each once, in consecutive lines of a table. It does not wait for
// readers: one that is with a text when it ends may send another text, over a connection that nobody waits for any more.
type textStore struct {
	lines []muxProbeText
	room  *buddy
	held  map[string]*text
}

// text is a text in the table; nil is the empty one.
type text struct {
	block
	bytes string
	refs  int
}

// newTextStore makes one over a table of any length: lines up to the next power of two, which are not there, are never free.
func newTextStore(lines []muxProbeText) *textStore {
	n := uint32(len(lines))
	end := uint32(1) << bits.Len32(n-1)
	room := newBuddy(end, 1)
	for at := n; at < end; {
		missing, ok := room.reserve(at, at&-at)
		if !ok {
			panic(fmt.Sprintf("texts: line %d of a fresh table is taken", at))
		}
		at += missing.words
	}
	room.used = 0
	return &textStore{lines: lines, room: room, held: map[string]*text{}}
}

// hold keeps a text until as many releases.
func (s *textStore) hold(b []byte) (*text, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if t := s.held[string(b)]; t != nil {
		t.refs++
		return t, nil
	}
	at, ok := s.room.alloc(uint32(len(b)+probeLine-1) / uint32(probeLine))
	if !ok {
		return nil, fmt.Errorf("requests and outer headers of probes: %w for %d bytes: %d lines of %d in all (--max-probes)", ErrProbeRoom, len(b), len(s.lines), probeLine)
	}
	t := &text{block: at, bytes: string(b), refs: 1}
	for i := range at.words {
		line := &s.lines[at.first+i].Bytes
		clear(line[:])
		if from := int(i) * probeLine; from < len(b) {
			copy(line[:], b[from:])
		}
	}
	s.held[t.bytes] = t
	return t, nil
}

// release undoes a hold.
func (s *textStore) release(t *text) {
	if t == nil {
		return
	}
	if t.refs--; t.refs == 0 {
		delete(s.held, t.bytes)
		s.room.free(t.block)
	}
}

// first is the first line of a text.
func (t *text) first() uint32 {
	if t == nil {
		return 0
	}
	return t.block.first
}

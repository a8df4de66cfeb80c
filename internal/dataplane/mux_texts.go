package dataplane

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"

	"github.com/shuntlb/shunt/internal/probe/index"
)

// ErrProbeRoom is wrapped where the tables of probes have no room, which may come: for a rule of this number, or for its texts.
var ErrProbeRoom = errors.New("no room")

// probeLine is the length of a line of texts.
const probeLine = int(muxProbeLimitLIMIT_PROBE_LINE)

// textStore keeps texts of which many rules have the same: each once, in consecutive lines of a table, and nowhere else. It does not
// wait for readers: one that is with a text when it ends may send another text, over a connection that nobody waits for any more.
type textStore struct {
	lines []muxProbeText
	room  *buddy
	// length and refs are of texts by their first lines: bytes, and who holds them. There is none where nobody does.
	length []uint16
	refs   []uint32
	held   index.Index
	seed   maphash.Seed
}

// text is a text in the table. The zero value is the empty one.
type text struct {
	first  uint32 // line
	length uint16 // bytes
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
	s := &textStore{lines: lines, room: room, length: make([]uint16, n), refs: make([]uint32, n), seed: maphash.MakeSeed()}
	s.held.Hash = func(first uint32) uint64 {
		var h maphash.Hash
		h.SetSeed(s.seed)
		for at, left := first, int(s.length[first]); left > 0; at, left = at+1, left-probeLine {
			h.Write(s.lines[at].Bytes[:min(left, probeLine)])
		}
		return h.Sum64()
	}
	return s
}

// hold keeps a text, of no more than 65535 bytes, until as many releases.
func (s *textStore) hold(b []byte) (text, error) {
	if len(b) == 0 {
		return text{}, nil
	}
	hash := maphash.Bytes(s.seed, b)
	if first, ok := s.held.Find(hash, func(first uint32) bool { return s.reads(first, b) }); ok {
		s.refs[first]++
		return text{first, uint16(len(b))}, nil
	}
	at, ok := s.room.alloc(uint32(len(b)+probeLine-1) / uint32(probeLine))
	if !ok {
		return text{}, fmt.Errorf("requests and outer headers of probes: %w for %d bytes: %d lines of %d in all (--max-probes)", ErrProbeRoom, len(b), len(s.lines), probeLine)
	}
	for i := range at.words {
		line := &s.lines[at.first+i].Bytes
		clear(line[:])
		if from := int(i) * probeLine; from < len(b) {
			copy(line[:], b[from:])
		}
	}
	s.length[at.first], s.refs[at.first] = uint16(len(b)), 1
	s.held.Add(at.first)
	return text{at.first, uint16(len(b))}, nil
}

// reads tells whether a text says this.
func (s *textStore) reads(first uint32, b []byte) bool {
	if int(s.length[first]) != len(b) {
		return false
	}
	for at := first; len(b) > 0; at++ {
		n := min(len(b), probeLine)
		if string(s.lines[at].Bytes[:n]) != string(b[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// release undoes a hold.
func (s *textStore) release(t text) {
	if t.length == 0 {
		return
	}
	if s.refs[t.first]--; s.refs[t.first] == 0 {
		s.held.Remove(t.first)
		s.room.free(s.blockOf(t))
		s.length[t.first] = 0
	}
}

// blockOf is where a text lies.
func (s *textStore) blockOf(t text) block {
	lines := (uint32(t.length) + uint32(probeLine) - 1) / uint32(probeLine)
	return block{t.first, 1 << bits.Len32(lines-1)}
}

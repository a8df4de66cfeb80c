package dataplane

import (
	"fmt"
	"net/netip"
)

// sourceTable keeps lists of source prefixes: one for every digest, however many VIPs name it.
type sourceTable struct {
	records  []muxSourceList
	words    []uint64
	indices  *pool
	blocks   *buddy
	byDigest map[[32]byte]*sourceRef
	byIndex  map[uint32]*sourceRef
}

// sourceRef is a list in the tables.
type sourceRef struct {
	digest [32]byte
	index  uint32
	block  block
	refs   int
}

// sourceBlockMin is the least block of source words.
const sourceBlockMin = 64

func newSourceTable(mem *muxMemory) sourceTable {
	return sourceTable{
		records: mem.sourceLists, words: mem.sourceWords,
		indices:  newPool(uint32(len(mem.sourceLists))),
		blocks:   newBuddy(uint32(len(mem.sourceWords)), sourceBlockMin),
		byDigest: make(map[[32]byte]*sourceRef),
		byIndex:  make(map[uint32]*sourceRef),
	}
}

// packedSources is a list as the tables hold it.
type packedSources struct {
	words          []uint64 // IPv4 turns, then IPv6 turns
	turns4, turns6 int
	denied         bool // sources that no prefix has
}

func (l *SourceList) packed() packedSources {
	denied := l.sourcesDenied()
	turns4 := sourceTurns(sourceRules(l, true), denied, 32)
	turns6 := sourceTurns(sourceRules(l, false), denied, 128)
	return packedSources{append(packTurns4(turns4), packTurns6(turns6)...), len(turns4), len(turns6), denied}
}

// acquire finds or writes a list and takes a reference. No reader sees a new one before its index is published.
func (t *sourceTable) acquire(l *SourceList) (*sourceRef, error) {
	if ref, ok := t.byDigest[l.Digest]; ok {
		ref.refs++
		return ref, nil
	}
	packed := l.packed()
	words := packed.words
	index, ok := t.indices.alloc()
	if !ok {
		return nil, noRoom(TableSourceLists, "source lists: no room: at most %d (--max-endpoints)", len(t.records))
	}
	ref := &sourceRef{digest: l.Digest, index: index, refs: 1}
	if len(words) > 0 {
		if ref.block, ok = t.blocks.alloc(uint32(len(words))); !ok {
			t.indices.free(index)
			return nil, noRoom(TableSources, "source lists: no room for %d words: %d in all", len(words), len(t.words))
		}
	}
	first := ref.block.first
	copy(t.words[first:], words)
	record := muxSourceList{
		Digest: l.Digest,
		Turns4: spanWord(first, packed.turns4),
		Turns6: spanWord(first+words4(packed.turns4), packed.turns6),
	}
	if packed.denied {
		record.Denies = 1
	}
	t.records[index] = record
	t.byDigest[l.Digest], t.byIndex[index] = ref, ref
	return ref, nil
}

// release gives back a reference to a list that no reader can follow any more.
func (t *sourceTable) release(ref *sourceRef) {
	if ref.refs--; ref.refs > 0 {
		return
	}
	if t.byDigest[ref.digest] == ref {
		delete(t.byDigest, ref.digest)
	}
	delete(t.byIndex, ref.index)
	t.blocks.free(ref.block)
	t.indices.free(ref.index)
}

// adopt takes a reference to the list with an index, which the tables name.
func (t *sourceTable) adopt(index uint32) (*sourceRef, error) {
	if ref, ok := t.byIndex[index]; ok {
		ref.refs++
		return ref, nil
	}
	if !t.indices.reserve(index) {
		return nil, fmt.Errorf("source list %d: beyond the table", index)
	}
	r := &t.records[index]
	ref := &sourceRef{digest: r.Digest, index: index, refs: 1}
	if n := words4(spanCount(r.Turns4)) + 2*uint32(spanCount(r.Turns6)); n > 0 {
		var ok bool
		if ref.block, ok = t.blocks.reserve(uint32(r.Turns4), n); !ok {
			return nil, fmt.Errorf("source list %d: words %d to %d in use twice", index, uint32(r.Turns4), uint32(r.Turns4)+n)
		}
	}
	if t.byDigest[ref.digest] == nil {
		t.byDigest[ref.digest] = ref
	}
	t.byIndex[index] = ref
	return ref, nil
}

// used is the number of words in use.
func (t *sourceTable) used() (n uint64) {
	for _, ref := range t.byIndex {
		n += uint64(ref.block.words)
	}
	return n
}

// words4 is how many words n IPv4 turns take.
func words4(n int) uint32 { return uint32(n+1) / 2 }

// denies asks the list with an index about an address, as bpf/lib/source.h does.
func (t *sourceTable) denies(index uint32, a netip.Addr) bool {
	r := &t.records[index]
	span := r.Turns6
	if a.Is4() {
		span = r.Turns4
	}
	turns := turnsAt(t.words[uint32(span):], spanCount(span), a)
	return (uint32(turns)^r.Denies)&1 != 0
}

// denies asks a list about an address: the longest prefix decides, of equal ones the denying.
func (l *SourceList) denies(a netip.Addr) bool {
	denied, longest := l.sourcesDenied(), -1
	for deny, prefixes := range [][]netip.Prefix{l.Allow, l.Deny} {
		for _, p := range prefixes {
			if p.Contains(a) && p.Bits() >= longest {
				denied, longest = deny == 1, p.Bits()
			}
		}
	}
	return denied
}

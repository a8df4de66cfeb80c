package dataplane

import (
	"fmt"
	"math"
	"sync/atomic"
)

// noWord stands for a member that the new tables do not have.
const noWord = math.MaxUint32

// carried is what became of remembered flows.
type carried struct {
	flows, dropped int
	// copies is how many entries each flow got: the table grew, and the bits of the hash that tell them apart are not
	// in an entry. All but one idle out.
	copies int
}

func (c carried) String() string {
	text := fmt.Sprintf("%d carried over, %d without room or backend", c.flows, c.dropped)
	if c.copies > 1 {
		text += fmt.Sprintf("; counted %d times until they idle out", c.copies)
	}
	return text
}

// carryFlows gives the tables the flows that former ones of the same ABI version remember. It may be done again, for the
// flows that came since. The bucket of a flow is the low bits of its hash, which an entry does not hold: a smaller table
// folds buckets, in a larger one every bucket that the flow may be in gets the entry.
func (t *muxTables) carryFlows(f *formerTables) (c carried) {
	old, now := len(f.flows), len(t.mem.flows)
	if old == 0 {
		return c
	}
	words := t.wordsOf(f)
	c.copies = max(now/old, 1)
	for i := range f.flows {
		for j := range f.flows[i].Entries {
			w := flowWord(load(&f.flows[i].Entries[j]))
			if w.class() == 0 {
				continue
			}
			to := uint32(noWord)
			if int(w.member()) < len(words) {
				to = words[w.member()]
			}
			placed := false
			for at := i & (now - 1); to != noWord && at < now; at += old {
				placed = remember(&t.mem.flows[at], w.withMember(to)) || placed
			}
			if placed {
				c.flows++
			} else {
				c.dropped++
			}
		}
	}
	return c
}

// wordsOf tells by former member word which word the member has now.
func (t *muxTables) wordsOf(f *formerTables) []uint32 {
	words := make([]uint32, len(f.members))
	for i, k := range f.members {
		words[i] = noWord
		if e := t.entries[k.Endpoint]; e != nil && e.members.get(k.Member) != nil {
			words[i] = e.block.first + uint32(k.Member)
		}
	}
	return words
}

// remember puts a flow into its bucket as the program would: an entry of its fingerprint is left alone, at most
// LIMIT_FLOW_UNTRUSTED are not trusted, a trusted one may take the place of another. False: there was no room.
func remember(b *muxFlowBucket, w flowWord) bool {
	free, weak, weaker := -1, 0, -1
	for i := range b.Entries {
		have := flowWord(load(&b.Entries[i]))
		switch {
		case have.class() == 0:
			if free < 0 {
				free = i
			}
		case have>>muxFlowBitFLOW_FINGERPRINT_SHIFT == w>>muxFlowBitFLOW_FINGERPRINT_SHIFT:
			return true
		case have.class() != FlowTrusted:
			weak++
			weaker = i
		}
	}
	if w.class() != FlowTrusted && weak >= int(muxLimitLIMIT_FLOW_UNTRUSTED) {
		return false
	}
	if free < 0 && w.class() == FlowTrusted {
		free = weaker
	}
	if free < 0 {
		return false
	}
	have := load(&b.Entries[free])
	return atomic.CompareAndSwapUint64(&b.Entries[free], have, uint64(w))
}

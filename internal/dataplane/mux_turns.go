package dataplane

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// address is an IP address as a number: IPv4 in the low 32 bits.
type address struct{ hi, lo uint64 }

func addressOf(a netip.Addr) address {
	if a.Is4() {
		b := a.As4()
		return address{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (a address) compare(b address) int {
	return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo))
}

// behind is the address after the 1<<bits addresses from a on; false when there is none below 1<<size.
func (a address) behind(bits, size int) (address, bool) {
	if bits == size {
		return address{}, false
	}
	b := a
	if bits < 64 {
		b.lo += 1 << bits
		if b.lo < a.lo {
			b.hi++
			return b, b.hi != 0
		}
		return b, size == 128 || b.lo < 1<<32
	}
	b.hi += 1 << (bits - 64)
	return b, b.hi > a.hi
}

// sourceRule is a prefix of a list: of nested ones the longest decides.
type sourceRule struct {
	first address
	bits  int // host bits: it holds 1<<bits addresses
	deny  bool
}

// sourceRules are the rules of one family in order: by first address, the wider first, of equal ones the denying last.
func sourceRules(l *SourceList, is4 bool) []sourceRule {
	rules := make([]sourceRule, 0, len(l.Allow)+len(l.Deny))
	for deny, prefixes := range [][]netip.Prefix{l.Allow, l.Deny} {
		for _, p := range prefixes {
			if p.Addr().Is4() == is4 {
				p = p.Masked()
				rules = append(rules, sourceRule{addressOf(p.Addr()), p.Addr().BitLen() - p.Bits(), deny == 1})
			}
		}
	}
	slices.SortFunc(rules, func(a, b sourceRule) int {
		return cmp.Or(a.first.compare(b.first), cmp.Compare(b.bits, a.bits), compareBool(a.deny, b.deny))
	})
	return rules
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// sourceTurns are the addresses, in order, at which the answer to "is it denied?" turns. Below the first it is `denied`.
// `rules` are as sourceRules orders them; size is 32 or 128.
func sourceTurns(rules []sourceRule, denied bool, size int) []address {
	var turns []address
	answer, open := denied, []sourceRule(nil) // rules around the present address, the innermost last
	at := func(a address, now bool) {
		if n := len(turns); n > 0 && turns[n-1] == a {
			turns = turns[:n-1]
			answer = !answer
		}
		if now != answer {
			turns = append(turns, a)
			answer = now
		}
	}
	// leave closes the rules that end at or before a.
	leave := func(a address, all bool) {
		for n := len(open); n > 0; n = len(open) {
			end, more := open[n-1].first.behind(open[n-1].bits, size)
			if !more || !all && end.compare(a) > 0 {
				return
			}
			open = open[:n-1]
			now := denied
			if n > 1 {
				now = open[n-2].deny
			}
			at(end, now)
		}
	}
	for _, r := range rules {
		leave(r.first, false)
		open = append(open, r)
		at(r.first, r.deny)
	}
	leave(address{}, true)
	return turns
}

// sourcesDenied is the answer for addresses that no prefix holds.
func (l *SourceList) sourcesDenied() bool { return len(l.Allow) > 0 }

// packTurns4 writes IPv4 turns as words, two to a word.
func packTurns4(turns []address) []uint64 {
	words := make([]uint64, (len(turns)+1)/2)
	for i, t := range turns {
		words[i/2] |= t.lo << (i % 2 * 32)
	}
	return words
}

// packTurns6 writes IPv6 turns as words, two words each.
func packTurns6(turns []address) []uint64 {
	words := make([]uint64, 0, 2*len(turns))
	for _, t := range turns {
		words = append(words, t.hi, t.lo)
	}
	return words
}

// turnsAt counts the turns at or below an address in packed words, as bpf/lib/source.h does.
func turnsAt(words []uint64, n int, a netip.Addr) int {
	want, turn := addressOf(a), func(i int) address { return address{words[2*i], words[2*i+1]} }
	if a.Is4() {
		turn = func(i int) address { return address{lo: words[i/2] >> (i % 2 * 32) & (1<<32 - 1)} }
	}
	low, high := 0, n
	for low < high {
		mid := (low + high) / 2
		if turn(mid).compare(want) <= 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// spanWord names a part of a table (enum span_shift of bpf/abi.h).
func spanWord(first uint32, count int) uint64 {
	return uint64(first) | uint64(count)<<muxSpanShiftSPAN_COUNT_SHIFT
}

// spanCount is the number of elements that a span word names.
func spanCount(word uint64) int { return int(word >> muxSpanShiftSPAN_COUNT_SHIFT) }

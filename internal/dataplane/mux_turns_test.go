package dataplane

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naiveDenied asks every prefix of a list; the longest that holds the address decides, of equal ones the denying.
func naiveDenied(l *SourceList, a netip.Addr) bool {
	denied, longest := len(l.Allow) > 0, -1
	for _, p := range l.Allow {
		if p.Contains(a) && p.Bits() > longest {
			denied, longest = false, p.Bits()
		}
	}
	for _, p := range l.Deny {
		if p.Contains(a) && p.Bits() >= longest {
			denied, longest = true, p.Bits()
		}
	}
	return denied
}

// packedList is a list as the tables hold it.
type packedList struct {
	words4, words6 []uint64
	n4, n6         int
	denied         bool
}

func packList(l *SourceList) (p packedList) {
	p.denied = l.sourcesDenied()
	turns4, turns6 := sourceTurns(sourceRules(l, true), p.denied, 32), sourceTurns(sourceRules(l, false), p.denied, 128)
	p.n4, p.n6 = len(turns4), len(turns6)
	p.words4, p.words6 = packTurns4(turns4), packTurns6(turns6)
	return p
}

func (p packedList) denies(a netip.Addr) bool {
	n := 0
	if a.Is4() {
		n = turnsAt(p.words4, p.n4, a)
	} else {
		n = turnsAt(p.words6, p.n6, a)
	}
	return p.denied != (n%2 == 1)
}

// edges are the first and last addresses of all prefixes, and their neighbours.
func edges(l *SourceList) (out []netip.Addr) {
	for _, p := range slices.Concat(l.Allow, l.Deny) {
		first := p.Masked().Addr()
		b := first.AsSlice()
		for i := p.Bits(); i < first.BitLen(); i++ {
			b[i/8] |= 0x80 >> (i % 8)
		}
		last, _ := netip.AddrFromSlice(b)
		for _, a := range []netip.Addr{first, first.Prev(), last, last.Next()} {
			if a.IsValid() {
				out = append(out, a)
			}
		}
	}
	return out
}

// closePrefix is a random prefix from a small part of the address space, so that many nest.
func closePrefix(r *rand.Rand) netip.Prefix {
	b := make([]byte, 4)
	if r.IntN(2) == 0 {
		b = make([]byte, 16)
	}
	for i := range b {
		b[i] = []byte{0, 0xff, 0x0a, byte(r.IntN(4))}[r.IntN(4)]
	}
	a, _ := netip.AddrFromSlice(b)
	bits := r.IntN(a.BitLen() + 1)
	if r.IntN(4) == 0 {
		bits = a.BitLen() - r.IntN(4)
	}
	return netip.PrefixFrom(a, bits)
}

func randomList(r *rand.Rand, n int) *SourceList {
	l := &SourceList{}
	binary.NativeEndian.PutUint64(l.Digest[:], r.Uint64())
	for range n {
		if p := closePrefix(r); r.IntN(2) == 0 {
			l.Allow = append(l.Allow, p)
		} else {
			l.Deny = append(l.Deny, p)
		}
	}
	return l
}

func TestSourceTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		l := randomList(r, rapid.IntRange(0, 40).Draw(t, "prefixes"))
		p := packList(l)
		if limit := 2 * (len(l.Allow) + len(l.Deny)); p.n4+p.n6 > limit {
			t.Fatalf("%d turns of %d prefixes", p.n4+p.n6, limit/2)
		}
		for _, a := range append(edges(l), randomAddr(r), netip.IPv4Unspecified(), netip.IPv6Unspecified()) {
			if got, want := p.denies(a), naiveDenied(l, a); got != want {
				t.Fatalf("%s of %+v: denied %v, wanted %v", a, l, got, want)
			}
		}
	})
}

// put writes a list where the program finds it as list 1.
func (u *policyRun) put(p packedList) {
	at := 7
	record := muxSourceList{Turns4: spanWord(uint32(at), p.n4), Turns6: spanWord(uint32(at+len(p.words4)), p.n6)}
	if p.denied {
		record.Denies = 1
	}
	copy(u.words[at:], p.words4)
	copy(u.words[at+len(p.words4):], p.words6)
	u.lists[1] = record
}

func (u *policyRun) denies(a netip.Addr) bool {
	in := policyPolicyIn{List: 1}
	in.SrcHi, in.SrcLo = halves(a)
	if a.Is4() {
		in.SrcHi = 0
	} else {
		in.V6 = 1
	}
	return u.run(in).Denied != 0
}

// TestSourceLibEqualsGo asks the same lists in BPF and naively.
func TestSourceLibEqualsGo(t *testing.T) {
	u, r := newPolicyRun(t), seeded(t)
	for range 60 {
		l := randomList(r, r.IntN(60))
		u.put(packList(l))
		for _, a := range append(edges(l), randomAddr(r), netip.IPv4Unspecified()) {
			if got, want := u.denies(a), naiveDenied(l, a); got != want {
				t.Fatalf("%s of %+v: denied %v, wanted %v", a, l, got, want)
			}
		}
	}
	if in := (policyPolicyIn{List: 99}); u.run(in).Denied != 1 {
		t.Error("a list that is not there lets packets through")
	}
}

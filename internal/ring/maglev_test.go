package ring

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naive is the paper's pseudo-code: materialised preference lists, and turns counted with integers.
func naive(code uint8, members []Member) []uint16 {
	size := 1 << code
	type row struct {
		m    Member
		list []int
		next int
	}
	var rows []row
	heaviest := 0
	for _, m := range members {
		if m.Weight == 0 {
			continue
		}
		heaviest = max(heaviest, int(m.Weight))
		dip := m.DIP.As16()
		h := mix64(binary.BigEndian.Uint64(dip[:8]))
		h = mix64(h ^ binary.BigEndian.Uint64(dip[8:]))
		h = mix64(h ^ uint64(m.Port))
		offset, skip := int(mix64(h+1)>>(64-code)), int(mix64(h+2)>>(64-code)|1)
		r := row{m: m}
		for j := range size {
			r.list = append(r.list, (offset+j*skip)%size)
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b row) int {
		if c := a.m.DIP.As16(); c != b.m.DIP.As16() {
			d := b.m.DIP.As16()
			return slices.Compare(c[:], d[:])
		}
		return int(a.m.Port) - int(b.m.Port)
	})
	ring, filled := make([]int, size), 0
	for i := range ring {
		ring[i] = -1
	}
	for round := 1; filled < size; round++ {
		for i := range rows {
			r := &rows[i]
			if round*int(r.m.Weight)/heaviest == (round-1)*int(r.m.Weight)/heaviest || filled == size {
				continue
			}
			for ring[r.list[r.next]] >= 0 {
				r.next++
			}
			ring[r.list[r.next]] = int(r.m.ID)
			filled++
		}
	}
	out := make([]uint16, size)
	for i, id := range ring {
		out[i] = uint16(id)
	}
	return out
}

func drawMembers(t *rapid.T, most int, weight *rapid.Generator[uint16]) []Member {
	n := rapid.IntRange(0, most).Draw(t, "members")
	ids := rapid.SliceOfNDistinct(rapid.Uint16(), n, n, rapid.ID).Draw(t, "ids")
	hosts := rapid.SliceOfNDistinct(rapid.Uint32(), n, n, rapid.ID).Draw(t, "hosts")
	members := make([]Member, n)
	for i := range members {
		members[i] = Member{ID: ids[i], DIP: address(hosts[i]), Port: rapid.Uint16Range(1, 3).Draw(t, "port"), Weight: weight.Draw(t, "weight")}
	}
	return members
}

// address returns IPv6 addresses for odd numbers.
func address(n uint32) netip.Addr {
	b := [16]byte{0x20, 1, 0xd, 0xb8}
	binary.BigEndian.PutUint32(b[12:], n)
	if n&1 == 0 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

func TestBuildEqualsNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		code := rapid.Uint8Range(CodeMin, 10).Draw(t, "code")
		members := drawMembers(t, 40, rapid.Uint16Range(0, 1000))
		if got, want := Build(code, members), naive(code, members); !slices.Equal(got, want) {
			t.Fatalf("ring differs from the paper's:\n%v\n%v", got, want)
		}
	})
}

func TestBuildIgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := drawMembers(t, 60, rapid.Uint16Range(0, 5))
		shuffled := rapid.Permutation(members).Draw(t, "shuffled")
		if !slices.Equal(Build(9, members), Build(9, shuffled)) {
			t.Fatal("another order of members gave another ring")
		}
	})
}

// counts returns the number of slots of each member.
func counts(ring []uint16) map[uint16]int {
	c := map[uint16]int{}
	for _, id := range ring {
		c[id]++
	}
	return c
}

func TestBuildBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := drawMembers(t, 50, rapid.Uint16Range(1, 20))
		if len(members) == 0 {
			return
		}
		code := uint8(12)
		sum := 0
		for _, m := range members {
			sum += int(m.Weight)
		}
		have := counts(Build(code, members))
		for _, m := range members {
			// After complete rounds a member has its part of them, rounded down. The slots lost by
			// rounding, less than one per member, are distributed by shares; the last round may be
			// incomplete.
			share := float64(m.Weight) / float64(sum) * float64(int(1)<<code)
			slack := 2 + float64(len(members))*float64(m.Weight)/float64(sum)
			if d := math.Abs(float64(have[m.ID]) - share); d > slack {
				t.Fatalf("member %d of weight %d of %d has %d slots, its share is %.1f", m.ID, m.Weight, sum, have[m.ID], share)
			}
		}
	})
}

// TestBuildDisruption limits the slots that move without need when one of several equal members
// leaves. The limit of a tenth is a guard against a broken permutation, not a measured value.
func TestBuildDisruption(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := drawMembers(t, 40, rapid.Just(uint16(1)))
		if len(members) < 2 {
			return
		}
		before := Build(12, members)
		gone := members[0].ID
		after := Build(12, members[1:])
		needless := 0
		for i, id := range before {
			if id != gone && after[i] != id {
				needless++
			}
		}
		if limit := len(before) / 10; needless > limit {
			t.Fatalf("%d of %d slots moved needlessly, at most %d may", needless, len(before), limit)
		}
	})
}

func TestBuildWithoutWeight(t *testing.T) {
	if r := Build(6, []Member{{ID: 1, DIP: address(2)}}); r != nil {
		t.Errorf("a ring of nobody has %d slots", len(r))
	}
}

func TestSizeCode(t *testing.T) {
	equal := func(n int) []uint16 { return slices.Repeat([]uint16{7}, n) }
	for _, c := range []struct {
		name     string
		weights  []uint16
		previous uint8
		want     uint8
	}{
		{"nobody", nil, 0, CodeMin},
		{"only zero weights", []uint16{0, 0}, 0, CodeMin},
		{"one", equal(1), 0, 7},
		{"ten", equal(10), 0, 10},
		{"eleven need more than 1024", equal(11), 10, 11},
		{"back to ten stays", equal(10), 11, 11},
		{"five stay", equal(5), 11, 11},
		{"two are eight times fewer", equal(2), 11, 8},
		{"a hundred", equal(100), 0, 14},
		{"too many", equal(20000), 0, CodeMax},
		{"one three times heavier", []uint16{1, 3}, 0, 9},
		{"a light one costs at most 16 times", []uint16{1, 1000}, 0, 12},
		{"previous out of range", equal(1), 31, 7},
	} {
		if got := SizeCode(c.weights, c.previous); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

// naiveExact is the paper's pseudo-code.
func naiveExact(prime int, members []Member) []uint16 {
	sorted := slices.SortedFunc(slices.Values(members), func(a, b Member) int {
		x, y := a.DIP.As16(), b.DIP.As16()
		return cmp.Or(slices.Compare(x[:], y[:]), int(a.Port)-int(b.Port))
	})
	entry, next := slices.Repeat([]int{-1}, prime), make([]int, len(sorted))
	for n := 0; ; {
		for i, m := range sorted {
			dip := m.DIP.As16()
			h := mix64(mix64(mix64(binary.BigEndian.Uint64(dip[:8]))^binary.BigEndian.Uint64(dip[8:])) ^ uint64(m.Port))
			offset, skip := int(mix64(h+1)%uint64(prime)), int(mix64(h+2)%uint64(prime-1))+1
			c := (offset + next[i]*skip) % prime
			for entry[c] >= 0 {
				next[i]++
				c = (offset + next[i]*skip) % prime
			}
			entry[c] = int(m.ID)
			next[i]++
			if n++; n == prime {
				out := make([]uint16, prime)
				for j, id := range entry {
					out[j] = uint16(id)
				}
				return out
			}
		}
	}
}

func TestBuildExactEqualsNaive(t *testing.T) {
	builder := new(Builder)
	rapid.Check(t, func(t *rapid.T) {
		prime := rapid.SampledFrom([]uint32{67, 257, 1021}).Draw(t, "prime")
		members := drawMembers(t, 40, rapid.Just(uint16(1)))
		if len(members) == 0 {
			return
		}
		if got, want := builder.BuildExact(prime, members), naiveExact(int(prime), members); !slices.Equal(got, want) {
			t.Fatalf("ring differs from the paper's:\n%v\n%v", got, want)
		}
	})
}

// TestBuilderForgets: a builder's ring does not depend on the ones built before, whatever their
// sizes.
func TestBuilderForgets(t *testing.T) {
	builder := new(Builder)
	rapid.Check(t, func(t *rapid.T) {
		code := rapid.Uint8Range(CodeMin, 12).Draw(t, "code")
		members := drawMembers(t, 100, rapid.Uint16Range(0, 3))
		if got, want := builder.Build(code, members), Build(code, members); !slices.Equal(got, want) {
			t.Fatalf("the ring depends on what the builder made before:\n%v\n%v", got, want)
		}
	})
}

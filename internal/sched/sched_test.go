package sched

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func anyShares(t *rapid.T, most int) []Share {
	weights := rapid.SliceOfN(rapid.Uint32Range(0, 1000), 1, most).Draw(t, "weights")
	out := make([]Share, len(weights))
	for i, w := range weights {
		out[i] = Share{uint16(i), w}
	}
	return out
}

// TestFit: no member loses or gains a share completely, and parts are exact or close to the wanted
// ones.
func TestFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 60)
		most := rapid.IntRange(60, 5000).Draw(t, "most")
		got := Fit(shares, most)
		want := slices.DeleteFunc(slices.Clone(shares), func(s Share) bool { return s.Share == 0 })
		if len(got) != len(want) {
			t.Fatalf("%d members, want %d", len(got), len(want))
		}
		if len(got) == 0 {
			return
		}
		total, wanted, ones := sum(got), sum(want), 0.0
		if total > uint64(most) || total == 0 {
			t.Fatalf("%d places, want 1 to %d", total, most)
		}
		for _, s := range got {
			if s.Share == 1 {
				ones++
			}
		}
		exact := true
		for i, s := range got {
			if s.ID != want[i].ID || s.Share == 0 {
				t.Fatalf("%v for %v", s, want[i])
			}
			part, due := float64(s.Share)/float64(total), float64(want[i].Share)/float64(wanted)
			exact = exact && uint64(s.Share)*wanted == uint64(want[i].Share)*total
			if most := (1 + ones*due) / float64(most); math.Abs(part-due) > most+1e-12 && !exact {
				t.Fatalf("member %d: part %v, due %v: beyond %v", s.ID, part, due, most)
			}
		}
		if divisor := uint64(gcdOf(want)); wanted/divisor <= uint64(most) && !exact {
			t.Fatalf("%v fits, but became %v", want, got)
		}
	})
}

func gcdOf(shares []Share) (d uint32) {
	for _, s := range shares {
		d = gcd(d, s.Share)
	}
	return d
}

// strays returns the largest deviation of a member's places from its part, after any number of
// places.
func strays(sequence []uint16, shares []Share) (worst float64) {
	had := map[uint16]int{}
	for n, id := range sequence {
		had[id]++
		for _, s := range shares {
			due := float64(s.Share) / float64(sum(shares)) * float64(n+1)
			worst = max(worst, math.Abs(float64(had[s.ID])-due))
		}
	}
	return worst
}

// nginx is the smooth weighted round-robin of nginx (ngx_http_upstream_get_peer): every member
// gains its weight, and the one with the most pays for all.
func nginx(shares []Share) (out []uint16) {
	purse := make([]int64, len(shares))
	for range sum(shares) {
		best := 0
		for i, s := range shares {
			purse[i] += int64(s.Share)
			if purse[i] > purse[best] {
				best = i
			}
		}
		purse[best] -= int64(sum(shares))
		out = append(out, shares[best].ID)
	}
	return out
}

func TestSmooth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := Fit(anyShares(t, 12), 400)
		got, counts := Smooth(shares), map[uint16]uint32{}
		for _, id := range got {
			counts[id]++
		}
		for _, s := range shares {
			if counts[s.ID] != s.Share {
				t.Fatalf("%v: member %d has %d places, want %d", got, s.ID, counts[s.ID], s.Share)
			}
		}
		if len(got) != int(sum(shares)) {
			t.Fatalf("%d places, want %d", len(got), sum(shares))
		}
		if worst := strays(got, shares); worst >= 1 {
			t.Fatalf("%v of %v strays by %v", got, shares, worst)
		}
	})
}

func TestSmoothExamples(t *testing.T) {
	for _, c := range []struct {
		shares []Share
		want   string
	}{
		{nil, "[]"},
		{[]Share{{7, 3}}, "[7 7 7]"},
		{[]Share{{1, 1}, {2, 1}, {3, 1}}, "[1 2 3]"},
		{[]Share{{1, 5}, {2, 1}, {3, 1}}, "[1 2 1 1 3 1 1]"}, // nginx: 1 1 2 1 3 1 1
		{[]Share{{1, 2}, {2, 1}}, "[1 2 1]"},
		{[]Share{{1, 0}, {2, 1}}, "[2]"},
	} {
		if got := fmt.Sprint(Smooth(c.shares)); got != c.want {
			t.Errorf("%v: %s, want %s", c.shares, got, c.want)
		}
	}
	// A case where nginx's order deviates: some heavy members among light ones.
	shares := []Share{}
	for i, n := range []uint32{1, 1, 1, 1, 20, 1, 1, 1, 15, 1, 1, 1, 20} {
		shares = append(shares, Share{uint16(i), n})
	}
	if ours, theirs := strays(Smooth(shares), shares), strays(nginx(shares), shares); ours >= 1 || theirs < 1.2 {
		t.Errorf("ours strays by %v, nginx's by %v", ours, theirs)
	}
}

func TestLongSequences(t *testing.T) {
	var shares []Share
	for i := range 4095 {
		shares = append(shares, Share{uint16(i), uint32(i*7919%1000 + 1)})
	}
	got := Sequence(shares)
	seen := map[uint16]bool{}
	for _, id := range got {
		seen[id] = true
	}
	if len(got) > MaxLength || len(seen) != len(shares) {
		t.Errorf("%d places for %d of %d members, want at most %d for all", len(got), len(seen), len(shares), MaxLength)
	}
}

func anyMembers(t *rapid.T) []Member {
	var out []Member
	for i := range rapid.IntRange(1, 30).Draw(t, "members") {
		m := Member{ID: uint16(i), Weight: uint16(rapid.SampledFrom([]int{0, 1, 1, 2, 3, 100, 1000}).Draw(t, "weight"))}
		m.Load, m.Known = float64(rapid.IntRange(0, 50).Draw(t, "load")), true
		out = append(out, m)
	}
	return out
}

// TestFillApart: for any difference of loads, all arriving connections are placed, and on the free
// members.
func TestFillApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		busy := math.Pow(10, rapid.Float64Range(6, 60).Draw(t, "exponent of the load"))
		arriving := rapid.IntRange(2, MaxLength).Draw(t, "arriving")
		got := Fill([]Member{{ID: 1, Weight: 1}, {ID: 2, Weight: 1}, {ID: 3, Weight: 1, Load: busy}}, arriving)
		if a, b := int(got[0].Share), int(got[1].Share); a+b != arriving || a-b > 1 || b-a > 1 || got[2].Share != 0 {
			t.Fatalf("%d of which %v", arriving, got)
		}
	})
}

// TestFill compares Fill with placing one connection after the other.
func TestFill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, arriving := anyMembers(t), rapid.IntRange(0, 300).Draw(t, "arriving")
		got := Fill(members, arriving)
		naive := make([]Share, len(members))
		for i, m := range members {
			naive[i].ID = m.ID
		}
		for range arriving {
			next := -1
			for i, m := range members {
				if m.Weight > 0 && (next < 0 || after(m, naive[i]) < after(members[next], naive[next])) {
					next = i
				}
			}
			if next >= 0 {
				naive[next].Share++
			}
		}
		if sum(got) != sum(naive) {
			t.Fatalf("%d given of %d", sum(got), sum(naive))
		}
		// Rounding may decide between equals.
		for i, m := range members {
			if got[i].Share == naive[i].Share {
				continue
			}
			for j, n := range members {
				if n.Weight > 0 && m.Weight > 0 && got[i].Share > 0 && after(m, got[i])-1/float64(m.Weight) > after(n, got[j])+1e-9 {
					t.Fatalf("%v of %v: %v, want %v", arriving, members, got, naive)
				}
			}
		}
	})
}

func TestAdaptive(t *testing.T) {
	for _, c := range []struct {
		loads   []float64
		weights []uint16
		want    []uint32
	}{
		{[]float64{0, 0, 0}, []uint16{1, 1, 1}, []uint32{10, 10, 10}},
		{[]float64{40, 40}, []uint16{1, 1}, []uint32{10, 10}},
		{[]float64{0, 80}, []uint16{1, 1}, []uint32{20, 7}}, // 10·40/20, 10·40/60
		// equally loaded relative to their weights
		{[]float64{20, 60}, []uint16{1, 3}, []uint32{10, 30}},
		{[]float64{0, 0, 900}, []uint16{1, 1, 1}, []uint32{20, 20, 5}},
		{[]float64{0, 1, 0}, []uint16{0, 1, 0}, []uint32{0, 10, 0}},
		// 1: below the minimum
		{append(make([]float64, 19), 1000), slices.Repeat([]uint16{1}, 20), append(slices.Repeat([]uint32{20}, 19), 2)},
	} {
		var members []Member
		for i, l := range c.loads {
			members = append(members, Member{ID: uint16(i), Weight: c.weights[i], Load: l, Known: true})
		}
		for i, s := range Adaptive(members) {
			if s.Share != c.want[i] {
				t.Errorf("loads %v: member %d: %d, want %d", c.loads, i, s.Share, c.want[i])
			}
		}
	}
}

func TestAssume(t *testing.T) {
	got, unknown := Assume([]Member{{ID: 1, Weight: 1, Load: 10, Known: true}, {ID: 2, Weight: 4}, {ID: 3, Weight: 0}, {ID: 4, Weight: 1, Load: 30, Known: true}})
	if len(got) != 3 || unknown != 1 || got[1].Load != 80 || got[0].Load != 10 {
		t.Errorf("%+v, %d unknown", got, unknown)
	}
	if got, unknown := Assume([]Member{{ID: 1, Weight: 2, Load: 7}}); unknown != 1 || got[0].Load != 0 {
		t.Errorf("nothing known: %+v, %d", got, unknown)
	}
}

func TestInConnections(t *testing.T) {
	got := InConnections([]Member{
		{Load: 0.5, Known: true, Connections: 10, HasConnections: true}, {Load: 1.5, Known: true, Connections: 30, HasConnections: true},
	})
	if got[0].Load != 10 || got[1].Load != 30 {
		t.Errorf("%+v", got)
	}
	got = InConnections([]Member{{Load: 0.2, Known: true}, {Load: 0.6, Known: true}})
	if math.Abs(got[0].Load-50) > 1e-9 || math.Abs(got[1].Load-150) > 1e-9 {
		t.Errorf("without connections: %+v", got)
	}
	if got = InConnections([]Member{{Known: true}}); got[0].Load != 0 {
		t.Errorf("idle: %+v", got)
	}
}

// TestWords: of two members Lighter selects the one that is less loaded relative to its weight with
// one more connection, unless they differ by less than the error of the encoding.
func TestWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pair [2]Member
		var words [2]uint64
		for i := range pair {
			pair[i] = Member{Weight: uint16(rapid.IntRange(1, 1000).Draw(t, "weight")), Load: rapid.Float64Range(0, 1e6).Draw(t, "load")}
			words[i] = WordOf(pair[i])
			for range rapid.IntRange(0, 20).Draw(t, "given") {
				words[i] = Given(words[i])
				pair[i].Load++
			}
		}
		a, b := after(pair[0], Share{}), after(pair[1], Share{})
		if math.Abs(a-b) < 0.01*max(a, b) {
			return
		}
		if Lighter(words[0], words[1]) != (a > b) {
			t.Fatalf("%+v: words %#x", pair, words)
		}
	})
	if WordOf(Member{Load: 5}) != 0 || Lighter(0, WordOf(Member{Weight: 1})) || Lighter(WordOf(Member{Weight: 1, Load: 9}), 0) {
		t.Error("what is not known is a reason")
	}
	if w := WordOf(Member{Weight: 1, Load: math.Inf(1)}); w>>StepShift != unit || w&scoreMask != maxScore {
		t.Errorf("a load beyond words: %#x", w)
	}
}

// TestDraws: each place is drawn equally often, and the two places differ.
func TestDraws(t *testing.T) {
	counts := map[int]int{}
	for hash := range uint64(70_000) {
		a, b := Draws(hash, 7)
		if a == b {
			t.Fatalf("hash %d draws place %d twice", hash, a)
		}
		counts[a]++
		counts[10+b]++
		if a, b := Draws(hash, 1); a != 0 || b != 0 {
			t.Fatalf("of one place %d and %d are drawn", a, b)
		}
	}
	for place, n := range counts {
		if n < 9_600 || n > 10_400 || place%10 >= 7 {
			t.Errorf("place %d: %d of 70,000", place, n)
		}
	}
}

// TestBasin: with delayed loads, members are filled as with current ones: compared with a scheduler
// that sees the true loads.
func TestBasin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const tick = 100 * time.Millisecond
		lag := time.Duration(rapid.IntRange(0, 4).Draw(t, "lag")) * tick
		members := anyMembers(t)
		loads := [][]float64{} // after each tick
		var basin Basin
		now := time.Unix(0, 0)
		for i := range 8 {
			arriving := rapid.IntRange(0, 40).Draw(t, "arriving")
			seen, exact := slices.Clone(members), slices.Clone(members)
			if late := i - int(lag/tick); late > 0 {
				for j := range seen {
					seen[j].Load = loads[late-1][j]
				}
			}
			arrived := 0.0
			if i > 0 {
				for j := range exact {
					exact[j].Load = loads[i-1][j]
					arrived += loads[i-1][j]
				}
				before := 0.0
				for j := range members {
					if i > 1 {
						before += loads[i-2][j]
					} else {
						before += members[j].Load
					}
				}
				arrived -= before
			}
			got, want := basin.Fill(seen, arrived, arriving, now, lag), Fill(exact, arriving)
			for j := range got {
				if got[j].Share != want[j].Share && math.Abs(after(exact[j], got[j])-after(exact[j], want[j])) > 1/float64(exact[j].Weight)+1e-9 {
					t.Fatalf("tick %d, lag %v: %v, want %v", i, lag, got, want)
				}
			}
			next := make([]float64, len(members))
			for j := range next {
				next[j] = exact[j].Load + float64(want[j].Share)
			}
			loads = append(loads, next)
			now = now.Add(tick)
		}
	})
}

func TestRate(t *testing.T) {
	var r Rate
	now := time.Unix(0, 0)
	if got := r.Happened(1000, now); got != 0 {
		t.Errorf("%v per second before any time passed", got)
	}
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		r.Happened(50, now)
	}
	if got := r.Happened(0, now); math.Abs(got-500) > 1 {
		t.Errorf("%v per second, want 500", got)
	}
	now = now.Add(time.Second)
	if got := r.Happened(0, now); math.Abs(got-500/math.E) > 1 {
		t.Errorf("%v per second a second later, want %v", got, 500/math.E)
	}
}

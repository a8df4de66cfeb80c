package manager

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func namesOf(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("node%d", i))
	}
	return out
}

// TestSurplusGoesWhenAllIsQuiet: no node is moved while members are added, removed or take over,
// nor by the only member.
func TestSurplusGoesWhenAllIsQuiet(t *testing.T) {
	var s sharing
	now := time.Unix(1000, 0)
	here := namesOf(6)
	ask := func(epoch int64, members ...string) int { return len(s.surplus(now, epoch, members, 6, here)) }
	for _, step := range []struct {
		after   time.Duration
		epoch   int64
		members []string
		want    int
	}{
		{0, 1, []string{"a", "b", "c"}, 0},
		{shareQuiet - 1, 1, []string{"a", "b", "c"}, 0},
		{0, 2, []string{"a", "b", "c"}, 0},
		{shareQuiet - 1, 2, []string{"a", "b", "c"}, 0},
		{0, 2, []string{"a", "b"}, 0},
		{shareQuiet, 2, nil, 0},
		{shareQuiet, 2, []string{"a"}, 0},
		{shareQuiet, 2, []string{"a"}, 0},
		{0, 2, []string{"a", "b", "c"}, 0},
		{shareQuiet, 2, []string{"a", "b", "c"}, 1},
		{time.Second, 2, []string{"a", "b", "c"}, 1},
	} {
		now = now.Add(step.after)
		if got := ask(step.epoch, step.members...); got != step.want {
			t.Fatalf("%+v: %d nodes are sent away", step, got)
		}
	}
}

// TestNodeThatComesBackStays: a node that found no other member is not moved repeatedly.
func TestNodeThatComesBackStays(t *testing.T) {
	var s sharing
	now := time.Unix(1000, 0)
	sent := map[string]int{}
	for range 100 {
		for _, name := range s.surplus(now, 1, []string{"a", "b", "c"}, 6, namesOf(6)) {
			sent[name]++
		}
		now = now.Add(shareEvery)
	}
	for _, name := range namesOf(6) {
		if sent[name] != 1 {
			t.Errorf("nodes were sent away so often: %v", sent)
		}
	}
	now = now.Add(shareOnce)
	if len(s.surplus(now, 1, []string{"a", "b", "c"}, 6, namesOf(6))) != 1 {
		t.Error("it may go to somebody after a while")
	}
}

// TestSharingEnds: whichever member the nodes connect to, moving ends with no member over its
// limit.
func TestSharingEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := []string{"a", "b", "c", "d", "e"}[:rapid.SampledFrom([]int{2, 3, 5}).Draw(t, "members")]
		nodes := rapid.IntRange(0, 300).Draw(t, "nodes")
		at, by := map[string][]string{}, map[string]*sharing{}
		for _, m := range members {
			by[m] = &sharing{}
		}
		for _, name := range namesOf(nodes) {
			m := rapid.SampledFrom(members).Draw(t, "at")
			at[m] = append(at[m], name)
		}
		now := time.Unix(1000, 0)
		for range 10 * 60 {
			for i, m := range members {
				gone := by[m].surplus(now, 1, members, nodes, at[m])
				at[m] = slices.DeleteFunc(at[m], func(name string) bool { return slices.Contains(gone, name) })
				next := members[(i+1)%len(members)]
				at[next] = append(at[next], gone...)
			}
			now = now.Add(shareEvery)
		}
		total := 0
		for _, m := range members {
			if total += len(at[m]); len(at[m]) > shareLimit(nodes, len(members)) {
				t.Fatalf("%s has %d of %d nodes", m, len(at[m]), nodes)
			}
		}
		if total != nodes {
			t.Fatalf("%d of %d nodes are left", total, nodes)
		}
	})
}

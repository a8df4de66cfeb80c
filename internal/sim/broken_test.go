package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/ring"
)

// oracle runs a story without plans, folds and cookies: it keeps every past membership, and a table
// of the owners of connections.
type oracle struct {
	up      []bool // by number of the server
	members []oracleRing
	buckets []bucket // of Beamer, after the first dealt memberships
	dealt   int
}

// oracleRing is a membership that was valid until some time.
type oracleRing struct {
	until time.Duration
	up    []int
	code  uint8
	slots []uint16
}

func (o *oracle) change(at time.Duration, c Change, r *rand.Rand) {
	for range c.Come {
		o.up = append(o.up, true)
	}
	for range c.Go {
		up := o.taking()
		o.up[up[r.IntN(len(up))]] = false
	}
	code := uint8(0)
	if n := len(o.members); n > 0 {
		o.members[n-1].until, code = at, o.members[n-1].code
	}
	next := oracleRing{up: o.taking()}
	var members []ring.Member
	var weights []uint16
	for _, n := range next.up {
		weights = append(weights, 1)
		members = append(members, ring.Member{ID: uint16(n), DIP: netip.AddrFrom4([4]byte{10, 20, byte(n >> 8), byte(n)}), Port: 443, Weight: 1})
	}
	next.code = ring.SizeCode(weights, code)
	next.slots = ring.Build(next.code, members)
	o.members = append(o.members, next)
}

func (o *oracle) taking() (up []int) {
	for n, is := range o.up {
		if is {
			up = append(up, n)
		}
	}
	return up
}

// owner returns the owner of a hash in the membership `back` generations ago.
func (o *oracle) owner(back int, hash uint64) int {
	m := o.members[len(o.members)-1-back]
	return int(m.slots[hash>>(64-m.code)])
}

// bucket is one of Beamer's table, in the naive form.
type bucket struct{ now, before, changed int }

// beamer returns Beamer's table after all memberships until now. Each bucket of a removed server
// goes to the server with the fewest. An added server takes its share: each time the least recently
// changed bucket of the servers with more than three quarters of theirs, and of equals that of the
// server with the most.
func (o *oracle) beamer() []bucket {
	for ; o.dealt < len(o.members); o.dealt++ {
		m := o.members[o.dealt]
		if o.buckets == nil {
			for i := range len(m.slots) {
				of := m.up[i%len(m.up)]
				o.buckets = append(o.buckets, bucket{of, of, 0})
			}
			continue
		}
		if slices.Equal(m.up, o.members[o.dealt-1].up) {
			continue
		}
		counts := func() map[int]int {
			n := map[int]int{}
			for _, b := range o.buckets {
				n[b.now]++
			}
			return n
		}
		for i, b := range o.buckets {
			if !slices.Contains(m.up, b.now) {
				n := counts()
				o.buckets[i] = bucket{slices.MinFunc(m.up, func(x, y int) int { return n[x] - n[y] }), b.now, o.dealt}
			}
		}
		share := len(o.buckets) / len(m.up)
		for _, to := range m.up {
			for !slices.Contains(o.members[o.dealt-1].up, to) && counts()[to] < share {
				n, oldest := counts(), -1
				for i, b := range o.buckets {
					if n[b.now] <= share-share/4 {
						continue
					}
					if oldest < 0 {
						oldest = i
						continue
					}
					was := o.buckets[oldest]
					if b.changed < was.changed || b.changed == was.changed && (n[b.now] > n[was.now] || n[b.now] == n[was.now] && slices.Index(m.up, b.now) < slices.Index(m.up, was.now)) {
						oldest = i
					}
				}
				o.buckets[oldest] = bucket{to, o.buckets[oldest].now, o.dealt}
			}
		}
	}
	return o.buckets
}

// reached returns the servers that receive a packet of a flow at some time.
func (o *oracle) reached(rule Rule, at time.Duration, hash uint64, table int) []int {
	last := len(o.members) - 1
	switch rule {
	case Modulo:
		return []int{o.members[last].up[hash%uint64(len(o.members[last].up))]}
	case PresentOwner:
		return []int{o.owner(0, hash)}
	case PreviousRing:
		return []int{o.owner(0, hash), o.owner(min(1, last), hash)}
	case Beamer:
		b := o.beamer()[hash%uint64(len(o.beamer()))]
		return []int{b.now, b.before}
	case LastOwner:
		reached := []int{o.owner(0, hash)}
		for back := 1; back <= min(8, last); back++ {
			if m := o.members[last-back]; m.until+time.Hour <= at {
				break
			}
			if former := o.owner(back, hash); former != reached[0] {
				return append(reached, former)
			}
		}
		return reached
	}
	return []int{table}
}

// outlive is Story.Outlive, one connection at a time.
func (o *oracle) outlive(s Story, rule Rule, flows []Flow, r *rand.Rand) (broken []int) {
	o.change(0, Change{Come: s.Servers}, r)
	table, lost := make([]int, len(flows)), make([]bool, len(flows))
	begin := func(until, from time.Duration) {
		for i, f := range flows {
			if f.Begin >= until || f.Begin < from {
				continue
			}
			switch up := o.members[len(o.members)-1].up; rule {
			case Published, Cookies:
				table[i] = up[i%len(up)]
			default:
				table[i] = o.reached(rule, f.Begin, f.Hash(), 0)[0]
			}
		}
	}
	from := time.Duration(-1 << 62)
	for _, c := range s.Changes {
		begin(c.At, from)
		sum := 0
		speak := func(at time.Duration) {
			for i, f := range flows {
				if f.Begin < at && f.End >= at && !lost[i] && !slices.Contains(o.reached(rule, at, f.Hash(), table[i]), table[i]) {
					lost[i] = true
					sum++
				}
			}
		}
		for _, m := range o.members[:len(o.members)-1] {
			if forgotten := m.until + time.Hour; forgotten > from && forgotten <= c.At {
				speak(forgotten)
			}
		}
		o.change(c.At, c, r)
		speak(c.At)
		broken = append(broken, sum)
		from = c.At
	}
	return broken
}

// drawStory draws a pool that changes a few times, sometimes so far apart that hosts drop earlier
// changes.
func drawStory(t *rapid.T) Story {
	s := Story{Servers: rapid.IntRange(1, 20).Draw(t, "servers")}
	up := s.Servers
	for range rapid.IntRange(1, 14).Draw(t, "changes") {
		after := rapid.SampledFrom([]time.Duration{time.Second, 7 * time.Minute, 20 * time.Minute, 2 * time.Hour}).Draw(t, "after")
		c := Change{At: s.End + after, Come: rapid.IntRange(0, 2).Draw(t, "come"), Go: rapid.IntRange(0, 2).Draw(t, "go")}
		if c.Go >= up+c.Come {
			c.Go = 0
		}
		if c.Come == c.Go {
			c.Come, c.Go = 1, 0
		}
		up += c.Come - c.Go
		s.Changes, s.End = append(s.Changes, c), c.At
	}
	return s
}

// Every rule breaks the same connections as the oracle, change by change.
func TestOutliveIsWhatTheOracleSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, seed := drawStory(t), rapid.Uint64().Draw(t, "seed")
		flows := append(s.Lasting(60, rand.New(rand.NewPCG(seed, 1))), s.Passing(60, 10*time.Minute, rand.New(rand.NewPCG(seed, 2)))...)
		slices.SortStableFunc(flows, func(a, b Flow) int { return int(a.Begin - b.Begin) })
		for _, rule := range BrokenRules {
			steps, err := s.Outlive(rule, flows, rand.New(rand.NewPCG(seed, 3)))
			if err != nil {
				t.Fatal(err)
			}
			// The connections that break since the previous change, including those of the change
			// itself.
			got, n := make([]int, len(s.Changes)), 0
			for _, step := range steps {
				for n < len(s.Changes)-1 && step.At > s.Changes[n].At {
					n++
				}
				got[n] += step.Broken
			}
			if want := new(oracle).outlive(s, rule, flows, rand.New(rand.NewPCG(seed, 3))); !slices.Equal(got, want) {
				t.Fatalf("%s: %+v breaks %v, the oracle says %v", rule, s, got, want)
			}
		}
	})
}

// The figures' rows: cookies lose no connection, every other rule loses some, and the better one
// loses fewer.
func TestPlayBroken(t *testing.T) {
	o := BrokenOptions{Seed: 5, Servers: 40, Changes: 12, Connections: 3000, Lasting: 20 * time.Second}
	rows, err := PlayBroken(o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := PlayBroken(o)
	if err != nil || !reflect.DeepEqual(rows, again) {
		t.Errorf("the same options gave other rows: %v", err)
	}
	last := map[string]float64{}
	for _, r := range rows {
		last[fmt.Sprint(r.Story, " ", r.Rule)] = r.BrokenPct
	}
	for _, story := range []string{"churn-40 ", "24-31-23 "} {
		lost := func(r Rule) float64 { return last[story+string(r)] }
		if lost(Cookies) != 0 || lost(Published) != 0 || lost(LastOwner) == 0 {
			t.Errorf("%s: %v", story, last)
		}
		if lost(Beamer) == 0 || lost(Beamer) > lost(LastOwner) {
			t.Errorf("%s: Beamer loses %g %%: %v", story, lost(Beamer), last)
		}
		if !slices.IsSorted([]float64{lost(LastOwner), lost(PreviousRing), lost(PresentOwner), lost(Modulo)}) {
			t.Errorf("%s: a worse rule loses less: %v", story, last)
		}
	}
	if rows[len(rows)-1].Servers != 23 {
		t.Errorf("the last change leaves %d servers, want 23", rows[len(rows)-1].Servers)
	}
}

// A story that removes the last server is refused.
func TestOutliveRefuses(t *testing.T) {
	s := Story{Servers: 1, Changes: []Change{{At: 1, Go: 1}}}
	if _, err := s.Outlive(Cookies, nil, rand.New(rand.NewPCG(1, 1))); err == nil {
		t.Error("the last server went")
	}
}

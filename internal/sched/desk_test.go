package sched

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// told returns members with these loads.
func told(loads ...float64) (out []Member) {
	for i, l := range loads {
		out = append(out, Member{ID: uint16(i), Weight: 1, Load: l, Known: true, Connections: l, Opened: uint32(l), HasConnections: true})
	}
	return out
}

// TestDeskSequences: each scheduler builds its sequence from the same members.
func TestDeskSequences(t *testing.T) {
	now := time.Unix(1000, 0)
	members := told(4, 0, 2)
	members[0].Weight = 2
	silent := slices.Clone(members)
	for i := range silent {
		silent[i] = Member{ID: silent[i].ID, Weight: silent[i].Weight}
	}
	for _, c := range []struct{ scheduler, want, silent string }{
		{lb.SchedulerRoundRobin, "[0 1 2]", "[0 1 2]"},
		{lb.SchedulerWeightedRoundRobin, "[0 1 0 2]", "[0 1 0 2]"},
		{lb.SchedulerRandom, "[0 1 0 2]", "[0 1 0 2]"},
		{lb.SchedulerP2C, "[0 1 0 2]", "[0 1 0 2]"},
		{lb.SchedulerLeastConnections, "[1]", "[0 1 0 2]"},
	} {
		d := Desk{Scheduler: c.scheduler}
		first := d.Next(News{Members: members, Now: now, Every: 100 * time.Millisecond})
		if got := fmt.Sprint(first.Sequence); got != c.want || !first.Changed {
			t.Errorf("%s: %s, want %s", c.scheduler, got, c.want)
		}
		d = Desk{Scheduler: c.scheduler}
		mute := d.Next(News{Members: silent, Now: now, Every: 100 * time.Millisecond})
		if got := fmt.Sprint(mute.Sequence); got != c.silent {
			t.Errorf("%s, of which nobody tells a load: %s, want %s", c.scheduler, got, c.silent)
		}
		looks := c.scheduler == lb.SchedulerP2C || c.scheduler == lb.SchedulerLeastConnections
		if want := map[bool]int{true: 3}[looks]; mute.Unknown != want || first.Unknown != 0 {
			t.Errorf("%s: %d unknown, want %d", c.scheduler, mute.Unknown, want)
		}
		for _, w := range mute.Loads {
			silent[w.ID].Word = w.Word
		}
		if again := d.Next(News{Members: silent, Now: now.Add(time.Second), Every: 100 * time.Millisecond}); again.Changed || len(again.Loads) > 0 {
			t.Errorf("%s: nothing new, but %+v", c.scheduler, again)
		}
	}
	d := Desk{Scheduler: lb.SchedulerAdaptive}
	counts := map[uint16]int{}
	for _, id := range d.Next(News{Members: told(0, 80), Now: now}).Sequence {
		counts[id]++
	}
	if counts[0] != 20 || counts[1] != 7 {
		t.Errorf("adaptive: %v, want 20 and 7", counts)
	}
	if got := (&Desk{Scheduler: lb.SchedulerRoundRobin}).Next(News{Now: now}); len(got.Sequence) != 0 {
		t.Errorf("nobody takes part: %+v", got)
	}
}

// wordsOf returns the ids of the packed loads.
func wordsOf(o Orders) (out []uint16) {
	for _, w := range o.Loads {
		out = append(out, w.ID)
	}
	return out
}

// TestDeskWords: packed loads are returned for members that need a new one: a new report arrived,
// the weight changed, or the packed load is missing. Members without reports get the average of the
// others.
func TestDeskWords(t *testing.T) {
	d := Desk{Scheduler: lb.SchedulerP2C}
	now := time.Unix(1000, 0)
	members := append(told(10, 20), Member{ID: 7, Weight: 2})
	next := func() (ids []uint16) {
		now = now.Add(100 * time.Millisecond)
		out := d.Next(News{Members: members, Now: now, Lag: 70 * time.Millisecond})
		for _, w := range out.Loads {
			members[slices.IndexFunc(members, func(m Member) bool { return m.ID == w.ID })].Word = w.Word
		}
		return wordsOf(out)
	}
	if got := next(); !slices.Equal(got, []uint16{0, 1, 7}) {
		t.Fatalf("words of %v, want of all", got)
	}
	if want := WordOf(Member{Weight: 2, Load: 30}); members[2].Word != want {
		t.Errorf("the silent one has %#x, want %#x", members[2].Word, want)
	}
	if got := next(); got != nil {
		t.Errorf("words of %v again", got)
	}
	members[1].Load = 26
	if got := next(); !slices.Equal(got, []uint16{1, 7}) {
		t.Errorf("words of %v, want of what was told, and of the silent one that has what is usual", got)
	}
	members[0].Word = 0
	if got := next(); !slices.Equal(got, []uint16{0}) {
		t.Errorf("words of %v, want of the one that the tables lost", got)
	}
	members = members[:2]
	members[0].Weight = 3
	if got := next(); !slices.Equal(got, []uint16{0}) {
		t.Errorf("words of %v, want of the other weight", got)
	}
	members[0].Known, members[0].Load = false, 0 // its reports stopped
	if got := next(); !slices.Equal(got, []uint16{0}) {
		t.Errorf("words of %v, want of the one that fell silent", got)
	}
}

// TestDeskReckonsWithItsOwn: connections that this mux scheduled, minus those whose end it saw,
// count until hosts could have included them. Then the hosts' reports count, also unchanged ones.
// Without any report all connections of this mux count.
func TestDeskReckonsWithItsOwn(t *testing.T) {
	for _, c := range []struct {
		known          bool
		given          int
		first, further float64
	}{
		{true, 10, 7, 0}, {true, -10, -7, 0}, {true, -20, -14, 0}, {false, 10, 10, 10},
	} {
		d := Desk{Scheduler: lb.SchedulerP2C}
		now, members := time.Unix(1000, 0), told(20, 20)
		for i := range members {
			members[i].Known, members[i].Weight = c.known, uint16(1+i)
		}
		next := func() []Word {
			now = now.Add(100 * time.Millisecond)
			return d.Next(News{Members: members, Now: now, Lag: 70 * time.Millisecond}).Loads
		}
		for i, w := range next() {
			members[i].Word = w.Word
		}
		was := [2]uint64{members[0].Word, members[1].Word}
		of := func(i int) float64 { return float64(int64(members[i].Word-was[i])) / float64(was[i]>>StepShift) }
		members[1].Word += uint64(c.given) * (was[1] >> StepShift)
		for round, want := range []float64{c.first, c.further, c.further} {
			for _, w := range next() {
				members[w.ID].Word = w.Word
			}
			if got := of(1); math.Abs(got-want) > 1e-3 || of(0) != 0 {
				t.Errorf("%+v: the word has %.3f connections more after %d rounds, want %v; the other %.3f", c, got, round+1, want, of(0))
			}
		}
	}
}

// TestDeskCounts: the number of places is that of new connections at all muxes, by the hosts'
// counters, or of those that this mux scheduled if that is more.
func TestDeskCounts(t *testing.T) {
	d := Desk{Scheduler: lb.SchedulerLeastConnections}
	now, members, taken := time.Unix(1000, 0), told(slices.Repeat([]float64{0}, 200)...), uint32(1<<32-50)
	next := func(opened uint32, own uint32) int {
		now, taken = now.Add(100*time.Millisecond), taken+own
		for i := range members {
			members[i].Opened += opened
		}
		return len(d.Next(News{Members: members, Taken: taken, Now: now, Every: 100 * time.Millisecond}).Sequence)
	}
	if got := next(0, 0); got != 50 {
		t.Errorf("a quiet service has %d places, want a quarter of its members", got)
	}
	for range 60 {
		next(1, 50) // 200 at all muxes, 50 of them here
	}
	if got := next(1, 50); got != 1 && got != 200 { // 200 equal shares are one each
		t.Errorf("%d places, want each member once", got)
	}
	if got := d.Muxes(); got < 3.9 || got > 4.1 {
		t.Errorf("%v muxes seem to be there, want 4", got)
	}
	if got := d.came(News{Members: members, Taken: taken + 5000, Now: now.Add(100 * time.Millisecond), Every: 100 * time.Millisecond}).next; got != 5000 {
		t.Errorf("%d expected after a burst of 5000", got)
	}
	if got := d.came(News{Members: members, Taken: 3, Now: now.Add(200 * time.Millisecond), Every: 100 * time.Millisecond}).next; got > 5000 {
		t.Errorf("%d expected after the program was loaded anew", got)
	}
}

// TestParts: Parts are the shares that many connections get.
func TestParts(t *testing.T) {
	for _, scheduler := range []string{lb.SchedulerWeightedRoundRobin, lb.SchedulerP2C, lb.SchedulerLeastConnections, lb.SchedulerAdaptive} {
		d, members := Desk{Scheduler: scheduler}, told(5, 5, 40, 0, 12)
		if len(d.Parts()) != 0 {
			t.Errorf("%s: parts before there are orders", scheduler)
		}
		for i := range members {
			members[i].Weight = []uint16{1, 1, 3, 2, 0}[i]
		}
		orders := d.Next(News{Members: members, Now: time.Unix(1000, 0), Every: 100 * time.Millisecond})
		words := map[uint16]uint64{}
		for _, w := range orders.Loads {
			words[w.ID] = w.Word
		}
		const n = 400_000
		got := map[uint16]float64{}
		r := rand.New(rand.NewPCG(1, 2))
		for i := range n {
			id := orders.Sequence[i%len(orders.Sequence)]
			if scheduler == lb.SchedulerP2C {
				one, other := Draws(r.Uint64(), len(orders.Sequence))
				if id = orders.Sequence[one]; Lighter(words[id], words[orders.Sequence[other]]) {
					id = orders.Sequence[other]
				}
			}
			got[id] += 1.0 / n
		}
		parts, sum := d.Parts(), 0.0
		for id := range uint16(5) {
			if sum += parts[id]; math.Abs(got[id]-parts[id]) > 0.005 {
				t.Errorf("%s: member %d has part %.4f, and got %.4f", scheduler, id, parts[id], got[id])
			}
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s: parts add up to %v", scheduler, sum)
		}
	}
}

// BenchmarkNext measures the computation for an endpoint at each sample of hosts, while all loads
// change.
func BenchmarkNext(b *testing.B) {
	for _, scheduler := range []string{lb.SchedulerLeastConnections, lb.SchedulerP2C, lb.SchedulerAdaptive} {
		for _, n := range []int{20, 1000} {
			b.Run(fmt.Sprintf("%s/%d", scheduler, n), func(b *testing.B) {
				d, now, members := Desk{Scheduler: scheduler}, time.Unix(1000, 0), told(make([]float64, n)...)
				for i := 0; b.Loop(); i++ {
					now = now.Add(100 * time.Millisecond)
					for j := range members {
						members[j].Load = float64(100 + (i*7+j*13)%31)
						members[j].Connections, members[j].Opened = members[j].Load, members[j].Opened+10
					}
					d.Next(News{Members: members, Now: now, Every: 100 * time.Millisecond, Lag: 70 * time.Millisecond})
				}
			})
		}
	}
}

package sched

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// told are members with these loads, told at a time.
func told(at time.Time, loads ...float64) (out []Member) {
	for i, l := range loads {
		out = append(out, Member{ID: uint16(i), Weight: 1, Load: l, Known: true, Connections: l, Opened: uint32(l), HasConnections: true, At: at})
	}
	return out
}

// TestDeskSequences: what each scheduler makes of the same members.
func TestDeskSequences(t *testing.T) {
	now := time.Unix(1000, 0)
	members := told(now, 4, 0, 2)
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
		if again := d.Next(News{Members: silent, Now: now.Add(time.Second), Every: 100 * time.Millisecond}); again.Changed || len(again.Loads) > 0 {
			t.Errorf("%s: nothing new, but %+v", c.scheduler, again)
		}
	}
	d := Desk{Scheduler: lb.SchedulerAdaptive}
	counts := map[uint16]int{}
	for _, id := range d.Next(News{Members: told(now, 0, 80), Now: now}).Sequence {
		counts[id]++
	}
	if counts[0] != 20 || counts[1] != 7 {
		t.Errorf("adaptive: %v, want 20 and 7", counts)
	}
	if got := (&Desk{Scheduler: lb.SchedulerRoundRobin}).Next(News{Now: now}); len(got.Sequence) != 0 {
		t.Errorf("nobody takes part: %+v", got)
	}
}

// TestDeskWords: words are for members of which something new was told, or whose weight is another; those of whom nothing is known have what the others have.
func TestDeskWords(t *testing.T) {
	d := Desk{Scheduler: lb.SchedulerP2C}
	now := time.Unix(1000, 0)
	members := append(told(now, 10, 20), Member{ID: 7, Weight: 2})
	ids := func(o Orders) (out []uint16) {
		for _, w := range o.Loads {
			out = append(out, w.ID)
		}
		return out
	}
	first := d.Next(News{Members: members, Now: now})
	if got := ids(first); !slices.Equal(got, []uint16{0, 1, 7}) {
		t.Fatalf("words of %v, want of all", got)
	}
	if want := WordOf(Member{Weight: 2, Load: 30}); first.Loads[2].Word != want {
		t.Errorf("the silent one has %#x, want %#x", first.Loads[2].Word, want)
	}
	if got := ids(d.Next(News{Members: members, Now: now, All: true})); !slices.Equal(got, []uint16{0, 1, 7}) {
		t.Errorf("words of %v, want of all", got)
	}
	if got := ids(d.Next(News{Members: members, Now: now})); got != nil {
		t.Errorf("words of %v again", got)
	}
	members[1].At = now.Add(time.Second)
	if got := ids(d.Next(News{Members: members, Now: now})); !slices.Equal(got, []uint16{1}) {
		t.Errorf("words of %v, want of what was told", got)
	}
	members[0].Weight = 3
	if got := ids(d.Next(News{Members: members, Now: now})); !slices.Equal(got, []uint16{0}) {
		t.Errorf("words of %v, want of the other weight", got)
	}
	members[0] = Member{ID: 0, Weight: 3} // nobody tells it any more
	if got := ids(d.Next(News{Members: members, Now: now})); !slices.Equal(got, []uint16{0}) {
		t.Errorf("words of %v, want of the one that fell silent", got)
	}
}

// TestDeskCounts: how much is filled is what begins at all muxes, by hosts' counts, or what this mux gave when that is more.
func TestDeskCounts(t *testing.T) {
	d := Desk{Scheduler: lb.SchedulerLeastConnections}
	now, members, taken := time.Unix(1000, 0), told(time.Unix(1000, 0), slices.Repeat([]float64{0}, 200)...), uint32(1<<32-50)
	next := func(opened uint32, own uint32) int {
		now, taken = now.Add(100*time.Millisecond), taken+own
		for i := range members {
			members[i].Opened += opened
			members[i].At = now
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

package plan

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// life is an endpoint whose backends are added, removed, drained, die and return.
type life struct {
	in     Input
	st     EndpointState
	wanted map[lb.BackendKey]Wanted
	heard  map[uint16]Heard
	// naive oracle: the begin of drains and deaths, as observed at every step
	draining map[lb.BackendKey]time.Time
	// full holds the wanted weights of the previous step.
	full map[lb.BackendKey]uint16
}

func newLife(rt *rapid.T) *life {
	l := &life{
		wanted: map[lb.BackendKey]Wanted{}, heard: map[uint16]Heard{}, draining: map[lb.BackendKey]time.Time{},
		st: EndpointState{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}},
	}
	l.in = Input{
		KeyID: 1, Size: eightPerMember, Now: epoch,
		SlowStart:    time.Duration(rapid.SampledFrom([]int{0, 7, 100}).Draw(rt, "slow start")) * time.Second,
		RepairWindow: time.Duration(rapid.SampledFrom([]int{0, 60, 3600}).Draw(rt, "repair window")) * time.Second,
		DrainTimeout: time.Duration(rapid.SampledFrom([]int{0, 30}).Draw(rt, "drain timeout")) * time.Second,
		DownAfter:    time.Duration(rapid.SampledFrom([]int{0, 30}).Draw(rt, "down after")) * time.Second,
		Heard:        func(id uint16) Heard { return l.heard[id] },
	}
	return l
}

// happen changes a backend, or the reports about a member.
func (l *life) happen(rt *rapid.T) {
	b := backendN(rapid.IntRange(0, 4).Draw(rt, "backend"))
	switch rapid.IntRange(0, 5).Draw(rt, "event") {
	case 0:
		delete(l.wanted, b)
	case 1, 2:
		l.wanted[b] = Wanted{b, uint16(rapid.SampledFrom([]int{0, 1, 3, 1000}).Draw(rt, "weight")), rapid.Bool().Draw(rt, "backup")}
	default:
		if len(l.st.Members) == 0 {
			return
		}
		id := rapid.SampledFrom(l.st.Members).Draw(rt, "member").ID
		switch h := l.heard[id]; {
		case rapid.IntRange(0, 5).Draw(rt, "silence") == 0:
			delete(l.heard, id)
		case h.Health == HeardDead:
			l.heard[id] = Heard{HeardAlive, l.in.Now, true}
		default:
			l.heard[id] = Heard{HeardDead, l.in.Now, false}
		}
	}
}

func (l *life) advance(rt *rapid.T) EndpointState {
	l.in.Wanted = l.in.Wanted[:0]
	for _, w := range l.wanted {
		l.in.Wanted = append(l.in.Wanted, w)
	}
	next, err := Advance(l.st, l.in)
	if err != nil {
		rt.Fatal(err)
	}
	return next
}

func TestPhases(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := newLife(rt)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			l.in.Now = l.in.Now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "ms")) * time.Millisecond)
			for range rapid.IntRange(0, 3).Draw(rt, "events") {
				l.happen(rt)
			}
			prev := l.st
			l.st = l.advance(rt)
			l.checkDrains(rt, prev)
			l.checkDown(rt, prev)
			l.checkWeights(rt, prev)
			for id, h := range l.heard {
				h.Fresh = false
				l.heard[id] = h
			}
			if again := l.advance(rt); !again.Equal(&l.st) || !reflect.DeepEqual(again.History, l.st.History) {
				rt.Fatalf("once more at the same time:\n%+v\nafter\n%+v", again, l.st)
			}
			l.checkDue(rt)
		}
	})
}

// checkDrains compares with the oracle: a draining backend is a member until its time is over.
func (l *life) checkDrains(rt *rapid.T, prev EndpointState) {
	for b, w := range l.wanted {
		i := slices.IndexFunc(l.st.Members, func(m MemberState) bool { return m.Backend == b })
		was := slices.ContainsFunc(prev.Members, func(m MemberState) bool { return m.Backend == b })
		if w.Weight > 0 {
			if i < 0 || !l.st.Members[i].Draining.IsZero() {
				rt.Fatalf("%v does not drain: %+v", b, l.st.Members)
			}
			delete(l.draining, b)
			continue
		}
		since, known := l.draining[b]
		if !known {
			since = l.in.Now
			l.draining[b] = since
		}
		stays := l.in.DrainTimeout == 0 || was && l.in.Now.Sub(since) < l.in.DrainTimeout
		if stays != (i >= 0) || stays && (!l.st.Members[i].Draining.Equal(since) || l.st.Members[i].Weight != 0) {
			rt.Fatalf("%v drains since %v at %v: %+v", b, since, l.in.Now, l.st.Members)
		}
		if !stays {
			delete(l.draining, b)
		}
	}
	for b := range l.draining {
		if _, still := l.wanted[b]; !still {
			delete(l.draining, b)
		}
	}
}

func (l *life) checkDown(rt *rapid.T, prev EndpointState) {
	was := map[uint16]bool{}
	for _, m := range prev.Members {
		was[m.ID] = m.Down
	}
	dead := func(m MemberState) bool {
		h := l.heard[m.ID]
		return h.Health == HeardDead && l.in.Now.Sub(h.Since) >= l.in.DownAfter && l.in.DownAfter > 0
	}
	anyLive := func() bool {
		return slices.ContainsFunc(l.st.Members, func(m MemberState) bool {
			h := l.heard[m.ID].Health
			return m.Weight > 0 && (h == HeardAlive || h == HeardNothing && !was[m.ID])
		})
	}
	live := anyLive()
	if !live {
		clear(was) // silent members come up again if no other is left
		live = anyLive()
	}
	for _, m := range l.st.Members {
		want := m.Weight > 0 && live && l.heard[m.ID].Health != HeardAlive && (was[m.ID] || dead(m))
		if m.Down != want {
			rt.Fatalf("member %d down is %v, want %v, in %+v hearing %v", m.ID, m.Down, want, l.st.Members, l.heard)
		}
	}
}

// checkWeights: a member that does not grow has its full weight, a growing one less, and never less
// than before unless it began again.
func (l *life) checkWeights(rt *rapid.T, prev EndpointState) {
	full := map[lb.BackendKey]uint16{}
	for b, w := range l.wanted {
		full[b] = w.Weight
	}
	before := map[uint16]uint32{}
	for i, share := range prev.Shares(l.full) {
		before[prev.Members[i].ID] = share
	}
	l.full = full
	finals := []uint16{}
	for i, share := range l.st.Shares(full) {
		m := l.st.Members[i]
		if full[m.Backend] > 0 {
			finals = append(finals, full[m.Backend])
		}
		grown := l.in.Now.Sub(m.Warming)
		old := slices.IndexFunc(prev.Members, func(p MemberState) bool { return p.ID == m.ID })
		switch {
		case m.Weight == 0:
			if full[m.Backend] != 0 || !m.Warming.IsZero() {
				rt.Fatalf("member %+v has no weight", m)
			}
		case m.Warming.IsZero():
			if share != 100 {
				rt.Fatalf("member %+v has %d %%, want all", m, share)
			}
		case grown < 0 || grown >= l.in.SlowStart || share < 10 || share > 90 || share > 10 && int64(share) > int64(100*grown/l.in.SlowStart):
			rt.Fatalf("member %+v has %d %% after %v of %v", m, share, grown, l.in.SlowStart)
		case old >= 0 && prev.Members[old].Warming.Equal(m.Warming) && prev.Members[old].Weight > 0 && share < before[m.ID] && before[m.ID] <= 90:
			rt.Fatalf("member %+v fell from %d to %d %%", m, before[m.ID], share)
		}
	}
	if len(finals) > 0 && l.st.RingCode != eightPerMember(finals, 0) {
		rt.Fatalf("ring code %d of final weights %v", l.st.RingCode, finals)
	}
	if len(prev.Members) == 0 {
		for _, m := range l.st.Members {
			if !m.Warming.IsZero() {
				rt.Fatalf("the first members grow: %+v", l.st.Members)
			}
		}
	}
}

// checkDue: nothing changes before the due time, and the due time is not late.
func (l *life) checkDue(rt *rapid.T) {
	now := l.in.Now
	due := Due(&l.st, l.in)
	until := now.Add(3 * time.Minute)
	if !due.IsZero() {
		if !due.After(now) {
			rt.Fatalf("due %v is not after %v", due, now)
		}
		until = due.Add(-1)
	}
	for _, at := range []time.Time{until, now.Add(until.Sub(now) / 2)} {
		l.in.Now = at
		next := l.advance(rt)
		next.Quarantine = l.st.Quarantine
		if !next.Equal(&l.st) {
			rt.Fatalf("at %v, before %v, it changes from\n%+v\nto\n%+v", at, due, l.st, next)
		}
	}
	l.in.Now = now
}

// TestSlowStartStory follows one backend that joins two others.
func TestSlowStartStory(t *testing.T) {
	in := Input{KeyID: 1, Size: eightPerMember, SlowStart: 100 * time.Second, Now: epoch}
	in.Wanted = []Wanted{{Backend: backendN(1), Weight: 2}, {Backend: backendN(2), Weight: 1}}
	st, _ := Advance(EndpointState{}, in)
	in.Wanted = append(in.Wanted, Wanted{Backend: backendN(3), Weight: 2})
	for _, step := range []struct {
		after time.Duration
		want  []uint16
	}{
		{0, []uint16{20, 10, 2}}, {19 * time.Second, []uint16{20, 10, 2}}, {20 * time.Second, []uint16{20, 10, 4}},
		{95 * time.Second, []uint16{20, 10, 18}}, {100 * time.Second, []uint16{2, 1, 2}},
	} {
		in.Now = epoch.Add(step.after)
		var err error
		if st, err = Advance(st, in); err != nil {
			t.Fatal(err)
		}
		got := []uint16{st.Members[0].Weight, st.Members[1].Weight, st.Members[2].Weight}
		if !slices.Equal(got, step.want) {
			t.Errorf("after %v: weights %v, want %v", step.after, got, step.want)
		}
	}
	if st.Generation != 5 {
		t.Errorf("generation %d: each change of weights is one, and nothing else", st.Generation)
	}
}

func TestHistoryOfManyMembers(t *testing.T) {
	all := make([]Wanted, MaxHistoryMembers/2)
	for i := range all {
		all[i] = Wanted{Backend: backendN(i), Weight: 1}
	}
	var st EndpointState
	for i := range 4 {
		all[0].Weight = uint16(1 + i)
		st, _ = Advance(st, Input{Wanted: all, KeyID: 1, Size: eightPerMember, Now: epoch, RepairWindow: time.Hour})
	}
	if len(st.History) != 2 || st.History[1].Generation != 3 {
		t.Errorf("%d memberships are remembered, want the last 2", len(st.History))
	}
}

// TestMemberThatReturnsLaterThanNow: reports arrive during a step. A member without slow start gets
// its full weight.
func TestMemberThatReturnsLaterThanNow(t *testing.T) {
	in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, Wanted: []Wanted{{backendN(0), 1, false}, {backendN(1), 1, false}}}
	st, err := Advance(EndpointState{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}}, in)
	if err != nil {
		t.Fatal(err)
	}
	in.Heard = func(id uint16) Heard {
		if id == 0 {
			return Heard{HeardAlive, epoch.Add(time.Millisecond), true}
		}
		return Heard{}
	}
	next, err := Advance(st, in)
	if err != nil || !reflect.DeepEqual(next, st) {
		t.Errorf("became %+v %v, want no change of %+v", next, err, st)
	}
}

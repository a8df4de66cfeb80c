package manager

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestConditionsDependOnNoHost: the conditions of one endpoint cost as much with a thousand hosts
// that reported their tables as with one.
func TestConditionsDependOnNoHost(t *testing.T) {
	s := newKept(t)
	connect := func(i int) {
		ses := newSession(t.Context(), identity{name: fmt.Sprint("host", i), role: string(lb.RoleHost)})
		ses.number = uint64(i)
		s.m.reports.connected(ses, &apiv1.Hello{}, s.clock.Now())
		s.m.reports.report(ses, &apiv1.NodeStatus{Tables: []*apiv1.TableStatus{{Name: "bindings", Used: 1, Capacity: 10}}}, s.clock.Now())
	}
	key := lb.EndpointKey{}
	cost := func() float64 {
		return testing.AllocsPerRun(10, func() {
			c := s.m.conditions()
			c.input(key, nil, 0)
			c.muxes()
			c.room()
		})
	}
	connect(1)
	one := cost()
	for i := range 1000 {
		connect(2 + i)
	}
	if got := s.m.conditions().hosts("host7")["bindings"]; got != (tableUse{1, 10}) {
		t.Errorf("table of host7: %+v", got)
	}
	if many := cost(); many > one {
		t.Errorf("%v allocations with 1,001 hosts, %v with one", many, one)
	}
}

// TestWithheldAt: the log keeps the same parts of withheld VIPs that a pass over all objects finds.
func TestWithheldAt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newEventLog("m1")
		l.begin(told{})
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			service, node := fmt.Sprint("s", rapid.IntRange(0, 3).Draw(t, "service")), fmt.Sprint("nodes/h", rapid.IntRange(0, 3).Draw(t, "node"))
			reason := rapid.SampledFrom([]string{reasonVIPsWithheld, reasonVIPsFit, reasonDeleted, reasonEndpointDown}).Draw(t, "reason")
			l.note(&apiv1.Event{Kind: string(lb.KindService), Name: service, Reason: reason, Message: node + ": table bindings"}, time.Unix(1, 0))
			if rapid.IntRange(0, 9).Draw(t, "a new term") == 0 {
				last := l.told.clone()
				l.end()
				l.begin(last)
			}
		}
		for i := range 4 {
			part := fmt.Sprint("nodes/h", i)
			var want []string
			for _, p := range l.parts(latchWithheld, reasonVIPsWithheld) {
				if p.part == part {
					want = append(want, p.name)
				}
			}
			var got []string
			for _, o := range l.withheldAt(part) {
				got = append(got, o.name)
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("%s: services %v, want %v", part, got, want)
			}
		}
	})
}

// TestMuxesOfView: the index of muxes has the Nodes that a pass over all finds.
func TestMuxesOfView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(1, 6).Draw(t, "writes") {
			w.step(t)
			want := maps.Clone(w.view.state.Nodes)
			maps.DeleteFunc(want, func(_ string, n *lb.Node) bool { return n.Role != lb.RoleMux })
			if !maps.Equal(w.view.muxes, want) {
				t.Fatalf("the index has %v, want %v", slices.Sorted(maps.Keys(w.view.muxes)), slices.Sorted(maps.Keys(want)))
			}
		}
	})
}

// TestLooksAtPaceCopyNoStatus: the round over connected nodes that looks for late ones copies none
// of their statuses.
func TestLooksAtPaceCopyNoStatus(t *testing.T) {
	s := newKept(t)
	connect := func(i int) {
		ses := newSession(t.Context(), identity{name: fmt.Sprint("host", i), role: string(lb.RoleHost)})
		ses.number = uint64(i)
		ses.moved = false
		s.m.sessions.add(ses)
		s.m.reports.connected(ses, &apiv1.Hello{HaveRevision: 1}, s.clock.Now())
		s.m.reports.report(ses, &apiv1.NodeStatus{Tables: []*apiv1.TableStatus{{Name: "bindings", Used: 1, Capacity: 10}}}, s.clock.Now())
	}
	for i := range 1001 {
		connect(1 + i)
	}
	// They have applied all updates for them, and report an older revision.
	s.m.view.mu.Lock()
	s.m.view.planRev = 5
	s.m.view.mu.Unlock()
	p := newPaceEvents(s.m)
	p.round()
	if len(p.late) > 0 {
		t.Errorf("%d hosts are late, want none", len(p.late))
	}
	if many := testing.AllocsPerRun(10, p.round); many > 200 {
		t.Errorf("%v allocations with 1,001 hosts, want at most 200", many)
	}
}

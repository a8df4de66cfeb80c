package manager

import (
	"context"
	"fmt"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestSilentHostIsMuted: a host with an open stream sends nothing. Its verdicts do not count
// meanwhile, for muxes and managers, connected or new. They count again with its next report, which
// has only the changes.
func TestSilentHostIsMuted(t *testing.T) {
	c := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	m, mux, _ := newTeller(c)
	s := newSession(context.Background(), identity{name: "host1", role: string(lb.RoleHost)})
	s.heardAt.Store(c.Now().UnixNano())
	m.sessions.add(s)
	knows := map[uint32]string{}
	expect := func(when string, want map[uint32]string) {
		t.Helper()
		muxHears(knows, mux.takeHealth())
		all := map[uint32]string{}
		muxHears(all, m.verdicts.all())
		told := map[uint32]string{}
		muxHears(told, m.verdicts.said("host1"))
		if fmt.Sprint(knows, all, told) != fmt.Sprint(want, want, want) {
			t.Errorf("%s: a mux knows %v, one that comes %v, a manager that comes %v; want %v", when, knows, all, told, want)
		}
	}
	say := func(h *apiv1.HealthReport) {
		h.Endpoints[0].Vip = "203.0.113.10"
		s.heardAt.Store(c.Now().UnixNano())
		m.hearHealth(s, h)
	}
	both := map[uint32]string{1: "alive", 2: "dead"}
	say(&apiv1.HealthReport{Full: true, Endpoints: []*apiv1.EndpointHealth{{Alive: []uint32{1}, Dead: []uint32{2}}}})
	expect("at first", both)
	c.Advance(mutedAfter - 1)
	m.muteSilent(c.Now())
	expect("within the time", both)
	c.Advance(1)
	m.muteSilent(c.Now())
	expect("silent", map[uint32]string{})
	m.muteSilent(c.Now())
	expect("still silent", map[uint32]string{})
	say(&apiv1.HealthReport{Endpoints: []*apiv1.EndpointHealth{{Alive: []uint32{2}}}})
	expect("a verdict changed", map[uint32]string{1: "alive", 2: "alive"})
	c.Advance(mutedAfter)
	m.muteSilent(c.Now())
	expect("silent again", map[uint32]string{})
	s.heardAt.Store(c.Now().UnixNano())
	m.muteSilent(c.Now())
	expect("a report without verdicts", map[uint32]string{1: "alive", 2: "alive"})
	c.Advance(mutedAfter)
	m.muteSilent(c.Now())
	expect("silent a third time", map[uint32]string{})
	say(&apiv1.HealthReport{Full: true, Endpoints: []*apiv1.EndpointHealth{{Dead: []uint32{1}}}})
	expect("a full account", map[uint32]string{1: "dead"})
}

// TestMTUEvents: a node whose links have a smaller MTU than its Network is reported once for each
// fault.
func TestMTUEvents(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 1, 1)...)
	var last *apiv1.NodeStatus
	for _, fault := range []string{"", "mtu 9000: eth0 has 1500", "mtu 9000: eth0 has 1500", "mtu 4000: eth0 has 1500", "", ""} {
		st := &apiv1.NodeStatus{MtuFault: fault}
		s.m.mtuEvent("mux1", last, st)
		s.m.mtuEvent("mux1", st, nil)
		last = st
		s.clock.Advance(time.Minute)
		s.write()
	}
	s.expectEvents(eventFilter{kind: "Node"}, "Node mux1 MTUTooLarge", "Node mux1 MTUTooLarge", "Node mux1 MTUFits")
}

func TestPathEvents(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 1, 1)...)
	var last *apiv1.NodeStatus
	report := func(unreached, unconfirmed []string, unanswered ...string) {
		st := &apiv1.NodeStatus{UnreachedHosts: unreached, UnconfirmedHosts: unconfirmed, UnansweredServers: unanswered}
		s.m.pathEvents("mux1", last, st)
		last = st
		s.clock.Advance(time.Minute)
		s.write()
	}
	report(nil, nil)
	report([]string{"10.20.1.1"}, nil)
	report([]string{"10.20.1.1"}, nil)
	report([]string{"10.20.1.1", "10.20.2.1"}, []string{"10.20.3.1"})
	report(nil, []string{"10.20.3.1"})
	report(nil, nil)
	report(nil, nil, "203.0.113.10 TCP port 80 at 10.20.1.11")
	report(nil, nil, "203.0.113.10 TCP port 80 at 10.20.1.11")
	report(nil, nil)
	s.expectEvents(eventFilter{kind: "Node"}, "Node mux1 HostsUnreached", "Node mux1 HostsUnreached", "Node mux1 HostsUnconfirmed", "Node mux1 HostsReached", "Node mux1 HostsConfirmed",
		"Node mux1 AnswersLost", "Node mux1 AnswersReturned")
}

package manager

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// tell runs the keeper and the health events once, and writes all events.
func (s *scribe) tell() {
	s.t.Helper()
	s.round()
	s.m.healthEvents.round()
	s.write()
	s.clock.Advance(eventPace)
}

// said returns the messages of events of one reason, oldest first.
func (s *scribe) said(reason string) []string {
	s.t.Helper()
	pages, _, _ := s.m.view.events.journal.since(0, time.Time{})
	events, err := (&eventFilter{}).read(pages)
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, e := range events {
		if e.GetReason() == reason {
			out = append(out, e.GetMessage())
		}
	}
	return out
}

func (s *scribe) expectSaid(reason string, want ...string) {
	s.t.Helper()
	if got := s.said(reason); strings.Join(got, "\n") != strings.Join(want, "\n") {
		s.t.Errorf("%s:\n%s\nwant:\n%s", reason, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// takeover begins another term, with the content of the store only.
func (s *scribe) takeover() {
	s.stop()
	s.start()
	s.begin()
}

func TestHealthIsTold(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 1, 3)...)
	s.say("mux1")
	s.say("mux2")
	s.tell()
	services := eventFilter{kind: "Service"}
	s.expectEvents(services, "Service s0 Applied")
	s.say("mux1", 1)
	s.tell()
	s.expectEvents(services, "Service s0 Applied") // mux2 does not agree
	s.say("mux2", 1)
	s.tell()
	s.say("mux1", 1, 2, 3)
	s.say("mux2", 1, 2, 3)
	s.tell()
	s.say("mux2", 1, 3)
	s.tell()
	s.say("mux2")
	s.tell()
	s.expectEvents(services, "Service s0 Applied", "Service s0 BackendDown", "Service s0 BackendDown x2", "Service s0 EndpointDown",
		"Service s0 BackendUp", "Service s0 EndpointUp", "Service s0 BackendUp x2")
	s.expectSaid(reasonBackendDown,
		"203.0.113.1 tcp/80: 1 of 3 backends down: 10.0.0.1:80; 2 healthy",
		"203.0.113.1 tcp/80: 3 of 3 backends down: 10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80; 0 healthy")
	s.expectSaid(reasonBackendUp, "203.0.113.1 tcp/80: 2 of 3 backends down: 10.0.0.1:80, 10.0.0.3:80; 1 healthy", "203.0.113.1 tcp/80: all 3 backends healthy")
	s.expectSaid(reasonEndpointDown, "203.0.113.1 tcp/80: it has no healthy backend left")
}

// TestTakeoverRepeatsNoHealth checks that a new leader does not repeat reported events, that it
// reports later changes, and that it waits for backends without a health report.
func TestTakeoverRepeatsNoHealth(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 2, 8)...)
	s.say("mux1", 1, 2, 3, 4, 5, 6, 7, 8)
	s.tell()
	before := s.read(eventFilter{})
	if len(s.said(reasonBackendDown)) != 2 || len(s.said(reasonEndpointDown)) != 2 {
		t.Fatalf("events: %q", before)
	}
	s.takeover()
	s.tell() // there are no reports yet
	s.say("mux1", 1, 2, 3, 4, 5, 6, 7, 8)
	s.tell()
	s.expectEvents(eventFilter{}, before...)
	s.takeover()
	s.say("mux1")
	s.tell()
	if got := s.read(eventFilter{})[len(before):]; len(got) != 4 || len(s.said(reasonEndpointUp)) != 2 || len(s.said(reasonBackendUp)) != 2 {
		t.Errorf("after all came back: %q", got)
	}
}

func TestBackupsAreTold(t *testing.T) {
	s := newScribe(t)
	objs := crowd(1, 1, 3)
	objs[1].(*lb.Service).Endpoints[0].Backends[2].Backup = true
	s.apply(objs...)
	s.say("mux1")
	s.tell()
	s.say("mux1", 1, 2)
	s.tell()
	s.takeover()
	s.say("mux1", 1, 2)
	s.tell()
	s.expectSaid(reasonBackupsInUse, "203.0.113.1 tcp/80: fewer than 50 % of its weight are healthy: backups take flows")
	s.expectSaid(reasonEndpointDown) // the backup serves
	s.expectSaid(reasonBackupsIdle)
	s.say("mux1")
	s.tell()
	s.expectSaid(reasonBackupsIdle, "203.0.113.1 tcp/80: backups take no new flows any more")
}

// TestHealthFloodIsBounded checks that 18,000 backends that die together cause one event for each
// of their 2,000 endpoints, and that backends of an endpoint that continue to flip cause one a
// minute.
func TestHealthFloodIsBounded(t *testing.T) {
	for _, c := range []struct{ services, flips, events int }{{200, 1, 1}, {4, 20, equalEvents + 1}} {
		s := newScribe(t)
		s.apply(crowd(c.services, 10, 10)...)
		s.say("mux1")
		s.tell()
		for range c.flips {
			s.say("mux1", 1, 2, 3, 4, 5, 6, 7, 8, 9)
			s.tell()
			s.say("mux1")
			s.tell()
		}
		s.clock.Advance(equalEventsPace)
		s.write()
		events, backends := 0, 0
		pages, _, _ := s.m.view.events.journal.since(0, time.Time{})
		all, err := (&eventFilter{}).read(pages)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if e.GetReason() == reasonBackendDown {
				events++
				backends += int(e.GetCount())
			}
		}
		if most := c.services * 10 * c.events; events > most || backends != c.services*10*9*c.flips {
			t.Errorf("%d events of %d backends that went down, want at most %d of %d", events, backends, most, c.services*10*9*c.flips)
		}
	}
}

func TestStepsAreTold(t *testing.T) {
	s := newScribe(t)
	objs := crowd(1, 1, 3)
	ep := &objs[1].(*lb.Service).Endpoints[0]
	ep.DrainTimeout, ep.SlowStart = time.Minute, 100*time.Second
	s.apply(objs...)
	s.say("mux1")
	s.tell()
	ep.Backends[0].Drain = true
	s.apply(objs...)
	s.tell()
	s.expectSaid(reasonDrainBegan, "203.0.113.1 tcp/80: drain, and take no new flows any more: 10.0.0.1:80")
	s.takeover()
	s.say("mux1")
	s.clock.Advance(time.Minute)
	s.tell()
	s.expectSaid(reasonDrainBegan, "203.0.113.1 tcp/80: drain, and take no new flows any more: 10.0.0.1:80")
	s.expectSaid(reasonDrainEnded, "203.0.113.1 tcp/80: drained, and left: 10.0.0.1:80")
	ep.Backends[0].Drain = false
	s.apply(objs...)
	s.tell()
	s.expectSaid(reasonSlowStartBegan, "203.0.113.1 tcp/80: begin with a tenth of their weight: 10.0.0.1:80")
	for range 10 {
		s.clock.Advance(10 * time.Second)
		s.tell()
	}
	s.expectSaid(reasonSlowStartBegan, "203.0.113.1 tcp/80: begin with a tenth of their weight: 10.0.0.1:80")
	s.expectSaid(reasonSlowStartEnded, "203.0.113.1 tcp/80: have their whole weight: 10.0.0.1:80")
	s.say("mux1", 2, 3)
	s.tell()
	s.clock.Advance(DefaultDownAfter)
	s.tell()
	s.say("mux1")
	s.tell()
	s.expectSaid(reasonRingChanged, "203.0.113.1 tcp/80: dead for long, taken out of the ring: 10.0.0.2:80, 10.0.0.3:80", "203.0.113.1 tcp/80: returned to the ring: 10.0.0.2:80, 10.0.0.3:80")
	s.say("mux1", 1)
	s.clock.Advance(DefaultDownAfter)
	s.tell()
	s.say("mux1", 1, 2, 3)
	s.tell()
	if got := s.said(reasonRingChanged); !strings.HasSuffix(got[len(got)-1], "in the ring again although dead, because no other is left: 10.0.0.1:80") {
		t.Errorf("when all are dead: %q", got)
	}
	s.say("mux1")
	s.tell()
	ep.Backends[1].Drain = true
	s.apply(objs...)
	ep.Backends[1].Drain = false
	s.apply(objs...)
	s.tell()
	if got := s.said(reasonDrainEnded); len(got) != 2 || !strings.Contains(got[1], "drain no more, and take new flows again: 10.0.0.2:80") {
		t.Errorf("a drain that was undone: %q", got)
	}
}

// TestHistoryTellsWhoSawIt checks that a backend's history has each change with the mux that caused
// it and its reason, under any leader, and only the last one of many that are reported together. It
// excludes changes of a deleted service of the same name.
func TestHistoryTellsWhoSawIt(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 2, 3)...)
	say := func(mux, words string, dead ...byte) {
		s.words = words
		s.say(mux, dead...)
		s.clock.Advance(time.Second)
	}
	began := s.clock.Now().Unix()
	history := func(port uint16) string {
		t.Helper()
		var at []seat
		for _, p := range s.m.view.seats(backendQuery{dip: netip.MustParseAddr("10.0.0.1")}) {
			if p.key.Port == port {
				at = append(at, p)
			}
		}
		if len(at) != 1 {
			t.Fatalf("%d seats at port %d", len(at), port)
		}
		b := []*apiv1.BackendHealth{at[0].health()}
		if err := s.m.withHistory(at, b); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, c := range b[0].History {
			out = append(out, fmt.Sprintf("%d %s %s (%s)", c.GetTime().AsTime().Unix()-began, c.GetVerdict(), c.GetNode(), c.GetWords()))
		}
		return strings.Join(out, ", ")
	}
	say("mux1", "status 200")
	say("mux2", "status 200")
	s.tell()
	say("mux1", "connection refused", 1)
	s.tell()
	if got := history(80); got != "" {
		t.Errorf("one mux of two calls it dead: %s", got)
	}
	say("mux1", "no route to host", 1) // the same verdict
	say("mux2", "status 503", 1)
	s.tell()
	want := "6 unhealthy mux2 (status 503)"
	if got := history(80); got != want {
		t.Errorf("it died: %s, want %s", got, want)
	}
	s.takeover()
	say("mux1", "status 503", 1)
	say("mux2", "status 200")
	s.tell()
	if got := history(80); got != want+", 9 healthy mux2 (status 200)" {
		t.Errorf("it came back: %s", got)
	}
	if got := history(81); got != history(80) {
		t.Errorf("of another endpoint: %s", got)
	}
	// Another service has the name, the VIP and the backend; it may be another tenant's.
	if _, _, err := s.m.remove(t.Context(), []ref{{lb.KindService, "s0"}}, false, false); err != nil {
		t.Fatal(err)
	}
	s.write()
	s.apply(crowd(1, 2, 3)...)
	s.write()
	if got := history(80); got != "" {
		t.Errorf("of the service before: %s", got)
	}
}

// TestSuspicionIsTold checks that all leaders together report once that a mux considers itself
// isolated, and once that this is over.
func TestSuspicionIsTold(t *testing.T) {
	s := newScribe(t)
	say := func(suspect bool) {
		s.m.takeStatus(&session{name: "mux1", role: lb.RoleMux, ctx: t.Context()}, &apiv1.NodeReport{Status: &apiv1.NodeStatus{Suspect: suspect}})
		s.write()
	}
	nodes := eventFilter{kind: "Node"}
	say(false)
	s.expectEvents(nodes)
	say(true)
	say(true)
	s.takeover()
	say(true)
	s.expectEvents(nodes, "Node mux1 MuxSuspect")
	s.takeover()
	say(false)
	say(false)
	s.expectEvents(nodes, "Node mux1 MuxSuspect", "Node mux1 MuxTrusted")
}

// TestWithheldEvents checks that VIPs that a mux withholds cause an event of their service with
// mux, table and VIPs, another one when the VIPs change, and one when there are none. A repeated
// report and a new leader cause none.
func TestWithheldEvents(t *testing.T) {
	s := newScribe(t)
	mux := &session{name: "mux1", role: lb.RoleMux, ctx: t.Context(), number: 1}
	s.m.reports.connected(mux, &apiv1.Hello{}, s.clock.Now())
	report := func(vips ...string) {
		t.Helper()
		st := &apiv1.NodeStatus{}
		for _, v := range vips {
			st.Withheld = append(st.Withheld, &apiv1.WithheldStatus{Vip: v, Service: "video", Tenant: "shop", Table: "quic_endpoints"})
		}
		s.m.takeStatus(mux, &apiv1.NodeReport{Status: st})
		s.write()
	}
	services := eventFilter{kind: "Service"}
	report()
	s.expectEvents(services)
	report("203.0.113.7")
	report("203.0.113.7")
	want := []string{"Service video VIPsWithheld"}
	s.expectEvents(services, want...)
	if got, message := s.m.events.last("Service", "video", latchWithheld, "nodes/mux1").message, "nodes/mux1: table quic_endpoints is full: VIPs 203.0.113.7 are not served"; got != message {
		t.Errorf("message %q, want %q", got, message)
	}
	s.takeover()
	s.m.reports.connected(mux, &apiv1.Hello{}, s.clock.Now())
	report("203.0.113.7")
	s.expectEvents(services, want...)
	report("203.0.113.7", "203.0.113.8")
	want = append(want, "Service video VIPsWithheld")
	s.expectEvents(services, want...)
	report()
	report()
	s.expectEvents(services, append(want, "Service video VIPsFit")...)
}

// TestBGPSessionEvents checks that a lost session causes one event with its reason, even if it is
// back before the mux reports again. Another session, a restarted speaker and a new leader cause
// none.
func TestBGPSessionEvents(t *testing.T) {
	s := newScribe(t)
	const one, two = "10.10.0.1", "10.10.0.2"
	mux := &session{name: "mux1", role: lb.RoleMux, ctx: t.Context(), number: 1}
	s.m.reports.connected(mux, &apiv1.Hello{}, s.clock.Now())
	report := func(state string, losses uint64) {
		t.Helper()
		s.m.takeStatus(mux, &apiv1.NodeReport{Status: &apiv1.NodeStatus{Peers: []*apiv1.PeerStatus{
			{Address: one, State: state, Losses: losses, Reason: fmt.Sprintf("loss %d", losses)}, {Address: two, State: "established"},
		}}})
		s.write()
	}
	nodes := eventFilter{kind: "Node"}
	report("idle", 0)
	report("established", 0)
	s.expectEvents(nodes)
	want := []string{"Node mux1 BGPSessionLost"}
	report("active", 1)
	report("openconfirm", 1)
	s.expectEvents(nodes, want...)
	s.takeover()
	s.m.reports.connected(mux, &apiv1.Hello{}, s.clock.Now())
	report("openconfirm", 1)
	s.expectEvents(nodes, want...)
	report("established", 1)
	report("established", 1)
	want = append(want, "Node mux1 BGPSessionEstablished")
	s.expectEvents(nodes, want...)
	report("established", 3) // lost and back between two reports
	want = append(want, "Node mux1 BGPSessionLost", "Node mux1 BGPSessionEstablished")
	s.expectEvents(nodes, want...)
	report("established", 0) // another speaker
	s.expectEvents(nodes, want...)
}

// TestHungerIsTold checks that all leaders together report once that a node lacks resources for its
// checks, and once that this is over.
func TestHungerIsTold(t *testing.T) {
	s := newScribe(t)
	say := func(starved bool) {
		s.m.takeStatus(&session{name: "host1", role: lb.RoleHost, ctx: t.Context()}, &apiv1.NodeReport{Status: &apiv1.NodeStatus{Starved: starved}})
		s.write()
	}
	nodes := eventFilter{kind: "Node"}
	say(false)
	s.expectEvents(nodes)
	say(true)
	s.takeover()
	say(true)
	s.expectEvents(nodes, "Node host1 ChecksStarved")
	say(false)
	say(false)
	s.expectEvents(nodes, "Node host1 ChecksStarved", "Node host1 ChecksFed")
}

// TestCrowdIsTold checks the same for a node whose tables have no room for checks by packets.
func TestCrowdIsTold(t *testing.T) {
	s := newScribe(t)
	say := func(crowded bool) {
		s.m.takeStatus(&session{name: "mux1", role: lb.RoleMux, ctx: t.Context()}, &apiv1.NodeReport{Status: &apiv1.NodeStatus{Crowded: crowded}})
		s.write()
	}
	nodes := eventFilter{kind: "Node"}
	say(false)
	s.expectEvents(nodes)
	say(true)
	s.takeover()
	say(true)
	s.expectEvents(nodes, "Node mux1 ChecksCrowded")
	say(false)
	say(false)
	s.expectEvents(nodes, "Node mux1 ChecksCrowded", "Node mux1 ChecksFit")
}

// TestPaceIsTold checks that all leaders together report a node once that is late for long, and do
// not report one that applies plan after plan.
func TestPaceIsTold(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 1, 1)...)
	pace := newPaceEvents(s.m)
	s.streams = 1
	mux := func(name string) *session {
		c := newSession(t.Context(), identity{name: name, role: "mux"})
		s.m.sessions.add(c)
		s.m.connected(c, nil)
		return c
	}
	lazy, busy := mux("lazy"), mux("busy")
	change := func(i int) {
		s.apply(crowd(1, 1, 1+i%2)...)
		for _, c := range []*session{lazy, busy} {
			c.tell(nil, true, s.m.view.planRevision(), 0)
		}
	}
	obey := func(c *session) { s.m.reports.acked(c, s.m.view.planRevision(), s.clock.Now()) }
	second := func() {
		s.clock.Advance(time.Second)
		pace.round()
		s.write()
	}
	nodes := eventFilter{kind: "Node"}
	for i := range 15 {
		change(i)
		second()
		obey(busy)
		if i < 3 {
			obey(lazy)
		}
	}
	connected := []string{"Node lazy NodeConnected", "Node busy NodeConnected"}
	s.expectEvents(nodes, append(connected, "Node lazy PlanStale")...)
	obey(lazy)
	second()
	second()
	s.expectEvents(nodes, append(connected, "Node lazy PlanStale", "Node lazy PlanCurrent")...)
	s.m.disconnected(lazy, fmt.Errorf("it is gone"))
	for range 15 {
		change(1)
		second()
		obey(busy)
	}
	s.expectEvents(nodes, append(connected, "Node lazy PlanStale", "Node lazy PlanCurrent", "Node lazy NodeDisconnected")...)
}

// TestManagersAreTold checks that the start and the end of a manager are reported once, also by a
// leader that started later.
func TestManagersAreTold(t *testing.T) {
	s := newScribe(t)
	managers := eventFilter{kind: kindManager}
	if err := s.m.view.until(t.Context(), func() bool { return s.m.view.managers["m1"] != nil }); err != nil {
		t.Fatal(err)
	}
	s.m.tellPresence()
	s.m.tellPresence()
	s.write()
	s.expectEvents(managers, "Manager m1 ManagerUp")
	s.m.managerEvent("m2", reasonManagerUp, "is up")
	s.write()
	s.takeover()
	s.m.tellPresence()
	s.write()
	s.m.tellPresence()
	s.write()
	s.expectEvents(managers, "Manager m1 ManagerUp", "Manager m2 ManagerUp", "Manager m2 ManagerDown")
}

// TestManagersOfBeforeARestoreAreNotTold checks that the managers of a backup's cluster are not
// reported as down in the restored cluster.
func TestManagersOfBeforeARestoreAreNotTold(t *testing.T) {
	s := newScribe(t)
	managers := eventFilter{kind: kindManager}
	registered := func() {
		t.Helper()
		if err := s.m.view.until(t.Context(), func() bool { return s.m.view.managers["m1"] != nil }); err != nil {
			t.Fatal(err)
		}
	}
	registered()
	s.m.managerEvent("m2", reasonManagerUp, "is up")
	s.m.managerEvent("m3", reasonManagerUp, "is up")
	s.m.managerEvent("m1", reasonRestored, "the state was restored")
	s.write()
	s.takeover()
	registered()
	s.m.tellPresence()
	s.m.managerEvent("m4", reasonManagerUp, "is up")
	s.write()
	s.takeover()
	registered()
	s.m.tellPresence()
	s.write()
	s.expectEvents(managers, "Manager m2 ManagerUp", "Manager m3 ManagerUp", "Manager m1 Restored", "Manager m1 ManagerUp", "Manager m4 ManagerUp", "Manager m4 ManagerDown")
}

package manager

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestLastWordCounts: hosts report, repeat, withdraw and forget verdicts on the same members. Muxes
// that receive every change end with the same state as one that receives the full report: for each
// member the last report that its host did not withdraw.
func TestLastWordCounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := newVerdicts()
		mux := map[uint32]string{}
		var spoken []spokenWord // the last one last
		for step := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			host := fmt.Sprintf("host%d", rapid.IntRange(1, 3).Draw(rt, "host"))
			s := &session{name: host, role: lb.RoleHost, number: uint64(step + 1)}
			if rapid.IntRange(0, 9).Draw(rt, "what") == 0 {
				spoken = unspeak(spoken, host, func(uint32) bool { return true })
				_, tell := v.forget(s)
				muxHears(mux, tell)
			} else {
				h := &apiv1.HealthReport{Full: rapid.Bool().Draw(rt, "full")}
				e := &apiv1.EndpointHealth{Vip: "203.0.113.10"}
				for id := range uint32(3) {
					said := rapid.SampledFrom([]string{"", "alive", "dead", "unknown"}).Draw(rt, "verdict")
					switch said {
					case "alive":
						e.Alive = append(e.Alive, id)
					case "dead":
						e.Dead = append(e.Dead, id)
					case "unknown":
						if !h.Full {
							e.Unknown = append(e.Unknown, id)
						}
					}
					spoken = speak(spoken, spokenWord{host, id, said}, h.Full)
				}
				h.Endpoints = append(h.Endpoints, e)
				muxHears(mux, v.report(s, h).tell)
			}
			want, all := map[uint32]string{}, map[uint32]string{}
			for _, w := range spoken {
				want[w.id] = w.said
			}
			muxHears(all, v.all())
			if fmt.Sprint(mux) != fmt.Sprint(want) || fmt.Sprint(all) != fmt.Sprint(want) {
				rt.Fatalf("step %d: a mux knows %v, one that comes %v, want %v", step, mux, all, want)
			}
		}
		if len(spoken) == 0 && len(v.words) > 0 {
			rt.Fatalf("keeps %v for nothing", v.words)
		}
	})
}

type spokenWord struct {
	host string
	id   uint32
	said string
}

// speak is the naive model of the valid reports.
func speak(spoken []spokenWord, w spokenWord, full bool) []spokenWord {
	if w.said == "" && !full {
		return spoken
	}
	for _, old := range spoken {
		if old == w {
			return spoken
		}
	}
	spoken = unspeak(spoken, w.host, func(id uint32) bool { return id == w.id })
	if w.said == "alive" || w.said == "dead" {
		spoken = append(spoken, w)
	}
	return spoken
}

func unspeak(spoken []spokenWord, host string, which func(uint32) bool) (left []spokenWord) {
	for _, w := range spoken {
		if w.host != host || !which(w.id) {
			left = append(left, w)
		}
	}
	return left
}

func muxHears(mux map[uint32]string, h *apiv1.HealthReport) {
	for _, e := range h.GetEndpoints() {
		for word, ids := range map[string][]uint32{"alive": e.Alive, "dead": e.Dead} {
			for _, id := range ids {
				mux[id] = word
			}
		}
		for _, id := range e.Unknown {
			delete(mux, id)
		}
	}
}

// newTeller returns a member with a mux, and a follower that receives its reports.
func newTeller(c clock.Clock) (m *Manager, mux *session, f *follower) {
	m = &Manager{o: Options{Clock: c, Log: slog.New(slog.DiscardHandler)}, verdicts: newVerdicts(), sessions: newSessions(c), outbox: newOutbox(), followers: newFollowers()}
	mux = newSession(context.Background(), identity{name: "mux1", role: "mux"})
	m.sessions.add(mux)
	f = &follower{m: m, name: "m3", nodes: map[string]*session{}, behind: map[string]bool{}, verdicts: map[string]*apiv1.NodeSaid{}, wake: make(chan struct{}, 1)}
	m.followers.byName["m3"] = f
	return m, mux, f
}

func (m *Manager) hearAlive(s *session, alive ...uint32) {
	m.hearHealth(s, &apiv1.HealthReport{Full: true, Endpoints: []*apiv1.EndpointHealth{{Vip: "203.0.113.10", Alive: alive}}})
}

// TestVerdictsAreOneBatch: 20,000 verdicts of one report wait for each mux as one message, and so
// do those of further reports until it reads.
func TestVerdictsAreOneBatch(t *testing.T) {
	m, muxes := batchOf(t)
	host := &session{name: "host1", role: lb.RoleHost}
	m.sessions.stamp(host)
	m.hearHealth(host, manyVerdicts(true))
	m.hearHealth(host, manyVerdicts(false))
	for _, mux := range muxes {
		h, again := mux.takeHealth(), mux.takeHealth()
		dead := 0
		for _, e := range h.GetEndpoints() {
			dead += len(e.GetDead())
		}
		if dead != 20_000 || len(h.GetEndpoints()) != 2000 || again != nil {
			t.Errorf("%s hears of %d dead members of %d endpoints, then %v", mux.name, dead, len(h.GetEndpoints()), again)
		}
	}
}

// batchOf returns a manager with two muxes that read nothing.
func batchOf(tb testing.TB) (*Manager, []*session) {
	m := &Manager{sessions: newSessions(clock.System{}), verdicts: newVerdicts(), outbox: newOutbox(), followers: newFollowers()}
	var muxes []*session
	for i := range 2 {
		s := newSession(tb.Context(), identity{name: fmt.Sprintf("mux%d", i+1), role: string(lb.RoleMux)})
		m.sessions.add(s)
		muxes = append(muxes, s)
	}
	return m, muxes
}

// manyVerdicts returns 20,000 verdicts on members of 2,000 endpoints.
func manyVerdicts(alive bool) *apiv1.HealthReport {
	h := &apiv1.HealthReport{}
	for port := range uint32(2000) {
		e := &apiv1.EndpointHealth{Vip: "203.0.113.10", Protocol: "tcp", Port: port + 1}
		for id := range uint32(10) {
			if alive {
				e.Alive = append(e.Alive, id)
			} else {
				e.Dead = append(e.Dead, id)
			}
		}
		h.Endpoints = append(h.Endpoints, e)
	}
	return h
}

// BenchmarkVerdicts measures the cost of 20,000 verdicts of one report until they wait for two
// muxes.
func BenchmarkVerdicts(b *testing.B) {
	m, muxes := batchOf(b)
	host := &session{name: "host1", role: lb.RoleHost}
	m.sessions.stamp(host)
	reports := [2]*apiv1.HealthReport{manyVerdicts(true), manyVerdicts(false)}
	for i := 0; b.Loop(); i++ {
		m.hearHealth(host, reports[i%2])
		for _, mux := range muxes {
			mux.takeHealth()
		}
	}
}

// TestStreamsThatAreOverAreNotPassedOn: a late report from an earlier stream of a host is not sent
// to other members.
func TestStreamsThatAreOverAreNotPassedOn(t *testing.T) {
	m, _, f := newTeller(clock.System{})
	m.hearAlive(&session{name: "host1", role: lb.RoleHost, number: 2}, 1)
	m.hearAlive(&session{name: "host1", role: lb.RoleHost, number: 1}, 1, 2)
	for _, down := range f.take() {
		if got := down.GetSaid().GetReport().GetHealth().GetEndpoints()[0].GetAlive(); len(got) != 1 {
			t.Errorf("other members hear that %v are alive, want what the newest stream said", got)
		}
	}
}

// TestWhatALeaderDoesNotKnowIsOver: a host fell silent while the member with its verdicts had no
// relay to the leader. The next relay begins with the leader's full state. Verdicts that are
// missing from it are withdrawn, unless the leader or the host itself reports them meanwhile.
func TestWhatALeaderDoesNotKnowIsOver(t *testing.T) {
	c := clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	leader, _, f := newTeller(c)
	leader.hearAlive(&session{name: "host1", role: lb.RoleHost, number: 1}, 1)
	f.tellAll()
	downs := f.take()
	if len(downs) != 2 || downs[0].GetSaid().GetNode() != "host1" || !downs[1].GetAllSaid() {
		t.Fatalf("a relay begins with %v, want what host1 says, and that this is all", downs)
	}
	m, mux, _ := newTeller(c)
	for i, host := range []string{"host1", "host2", "host3"} {
		m.hearAlive(&session{name: host, role: lb.RoleHost, number: 1}, uint32(i+1))
	}
	here := newSession(t.Context(), identity{name: "host3", role: "host"})
	m.sessions.add(here)
	before := m.verdicts.streams()
	m.told(downs[0])
	mux.takeHealth()
	done := make(chan struct{})
	go func() {
		m.forgetUnsaid(t.Context(), before)
		close(done)
	}()
	for c.Waiting() == 0 {
		runtime.Gosched()
	}
	c.Advance(silentFor)
	<-done
	if h := mux.takeHealth(); len(h.GetEndpoints()) != 1 || fmt.Sprint(h.Endpoints[0].Unknown) != "[2]" || len(h.Endpoints[0].Alive) > 0 {
		t.Errorf("muxes hear %v, want that nothing is known of host2's member", h)
	}
}

// TestHostWhoseClockWentBack: a host left a follower for another member, and its stream there is
// older by its clock. The follower, which refused the relayed reports, accepts the host again.
func TestHostWhoseClockWentBack(t *testing.T) {
	m, _, f := newTeller(clock.System{})
	f.ctx, f.end = context.WithCancelCause(t.Context())
	old := newSession(t.Context(), identity{name: "host1", role: "host"})
	old.via, old.stream, old.opened = f, 7, 3_600_000_000_000
	f.nodes["host1"] = old
	m.reports, m.opinions, m.view = newReports(), newOpinions(), newView(nil)
	now := newSession(t.Context(), identity{name: "host1", role: "host"})
	now.opened = 1
	m.sessions.add(now)
	m.hearAlive(now, 1)
	f.take()
	f.hear(&apiv1.RelayUp{Left: &apiv1.NodeLeft{Node: "host1", Stream: 7}})
	if downs := f.take(); len(downs) != 1 || downs[0].GetSaid().GetNode() != "host1" {
		t.Errorf("the follower hears %v, want what host1 says", downs)
	}
}

// TestStatusesHoldUpNothing: while a status is always waiting, the leader still receives which
// nodes are behind, and refusals.
func TestStatusesHoldUpNothing(t *testing.T) {
	m, mux, _ := newTeller(clock.System{})
	m.view, m.auditLog = newView(nil), newAuditLog()
	m.outbox.hello(mux, &apiv1.Hello{Name: "mux1"})
	m.outbox.link()
	m.outbox.next(weightObeyed)
	r := relaying{m: m, behind: true}
	m.outbox.report(mux, &apiv1.NodeStatus{})
	if up := r.next(); up.GetProgress() == nil {
		t.Errorf("the leader hears %v, want who is behind", up)
	}
	if up := r.next(); up.GetSaid().GetReport().GetStatus() == nil {
		t.Errorf("the leader hears %v, want the status", up)
	}
}

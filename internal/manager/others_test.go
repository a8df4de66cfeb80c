package manager

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// seer is a mux or host of TestOthersIsWhatTheySay.
type seer struct {
	suspect, away bool
	at            time.Time
	said          map[uint32]string
}

// TestOthersIsWhatTheySay: a mux receives alive if another mux that counts, or a host, reports
// alive, and dead if all of their reports are dead.
func TestOthersIsWhatTheySay(t *testing.T) {
	key := healthKey{vip: "203.0.113.10", protocol: "tcp", port: 80}
	rapid.Check(t, func(rt *rapid.T) {
		m := &Manager{o: Options{Clock: clock.NewFake(time.Unix(1000, 0))}, reports: newReports(), opinions: newOpinions(), verdicts: newVerdicts()}
		now, words := m.o.Clock.Now(), []string{"", "alive", "dead", "unknown"}
		seers := map[string]*seer{}
		for i := range rapid.IntRange(1, 4).Draw(rt, "muxes") {
			name := fmt.Sprintf("mux%d", i)
			s := &seer{
				suspect: rapid.Bool().Draw(rt, "suspect"), away: rapid.IntRange(0, 4).Draw(rt, "away") == 0,
				at: now.Add(-time.Duration(rapid.IntRange(0, 8).Draw(rt, "age")) * time.Second), said: map[uint32]string{},
			}
			seers[name] = s
			st := &apiv1.NodeStatus{Suspect: s.suspect}
			for id := range uint32(4) {
				s.said[id] = rapid.SampledFrom(words).Draw(rt, "said")
				if s.said[id] != "" {
					st.Members = append(st.Members, &apiv1.MemberStatus{
						Vip: key.vip, Protocol: key.protocol, Port: key.port, Member: id, Alive: s.said[id] == "alive", Unknown: s.said[id] == "unknown",
					})
				}
			}
			stream := &session{name: name, role: lb.RoleMux, number: uint64(i + 1), ctx: context.Background()}
			m.reports.connected(stream, &apiv1.Hello{}, s.at)
			m.reports.report(stream, st, s.at)
			m.opinions.report(stream, st.Members, s.at)
			if s.away {
				m.reports.disconnected(stream, s.at)
				m.opinions.gone(stream, s.at)
			}
		}
		host := &seer{at: now, said: map[uint32]string{}}
		e := &apiv1.EndpointHealth{Vip: key.vip, Protocol: key.protocol, Port: key.port}
		for id := range uint32(4) {
			switch host.said[id] = rapid.SampledFrom(words).Draw(rt, "host said"); host.said[id] {
			case "alive":
				e.Alive = append(e.Alive, id)
			case "dead":
				e.Dead = append(e.Dead, id)
			}
		}
		m.verdicts.report(&session{name: "host", role: lb.RoleHost, number: 9}, &apiv1.HealthReport{Full: true, Endpoints: []*apiv1.EndpointHealth{e}})
		seers["host"] = host

		want := map[uint32]string{}
		for id, own := range seers["mux0"].said {
			if own == "" || seers["mux0"].away {
				continue
			}
			for name, s := range seers {
				if name == "mux0" || s.suspect || s.away || now.Sub(s.at) > othersFresh {
					continue
				}
				if said := s.said[id]; said == "alive" || said == "dead" && want[id] == "" {
					want[id] = said
				}
			}
		}
		got, report := map[uint32]string{}, m.others("mux0")
		for _, e := range report.GetEndpoints() {
			for _, id := range e.GetAlive() {
				got[id] = "alive"
			}
			for _, id := range e.GetDead() {
				got[id] = "dead"
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || !report.GetFull() {
			rt.Fatalf("others say %v, want %v of %v", report, want, seers)
		}
	})
}

// TestAskersArePaced: concurrent requests get one reply, and a mux gets at most one a second.
func TestAskersArePaced(t *testing.T) {
	a, now := newAskers(), time.Unix(1000, 0)
	begin := func(mux string, wait time.Duration, first bool) {
		t.Helper()
		if w, f := a.begin(mux, now); w != wait || f != first {
			t.Errorf("at %v %s waits %v, first %v; want %v, %v", now.Unix(), mux, w, f, wait, first)
		}
	}
	begin("mux1", 0, true)
	begin("mux1", 0, false)
	begin("mux2", 0, true)
	a.end("mux1", now)
	now = now.Add(300 * time.Millisecond)
	begin("mux1", 700*time.Millisecond, true)
	begin("mux1", 0, false)
	now = now.Add(700 * time.Millisecond)
	a.end("mux1", now)
	now = now.Add(othersPace)
	begin("mux1", 0, true)
}

package top

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// report returns a mux's report, taken at a second, with a member of 10 × packets bytes.
func report(node string, second int64, packets uint64, alive bool) *apiv1.NodeStatus {
	return &apiv1.NodeStatus{
		Name: node, Role: "mux", Connected: true, LastSeen: timestamppb.New(time.Unix(second, 0)), SyncedRevision: 9,
		Members: []*apiv1.MemberStatus{{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080, Alive: alive, Packets: packets, Bytes: 10 * packets, Flows: 5, Weight: 2}},
		Reasons: []*apiv1.ReasonCount{{Reason: "forwarded", Packets: packets, Class: "tx"}, {Reason: "no_backend", Packets: packets / 10, Class: "drop"}},
	}
}

func answerOf(nodes ...*apiv1.NodeStatus) *apiv1.StatusResponse {
	return &apiv1.StatusResponse{Revision: 9, Nodes: nodes}
}

func TestRates(t *testing.T) {
	host := report("host1", 12, 9000, true)
	host.Role = "host"
	got := Between(
		answerOf(report("mux1", 10, 1000, true), report("mux2", 10, 5000, true), report("mux3", 10, 1, true)),
		// mux2 recreated its tables; mux3 sent no new report; mux4 has one report; the host's
		// members are the same as the muxes'.
		answerOf(report("mux1", 12, 3000, true), report("mux2", 11, 100, false), report("mux3", 10, 1, true), report("mux4", 12, 700, true), host),
	)
	if s := got.Services[0]; s != (Service{Service: "web", PPS: 1000 + 100, BPS: 80*1000 + 80*100, Flows: 20, Backends: 1, Alive: 0}) {
		t.Errorf("service: %+v", s)
	}
	if b := got.Backends[0]; b.Backend != "10.20.1.11:8080" || b.PPS != 1100 || b.Health != "mixed" || b.Weight != 2 || len(got.Backends) != 1 {
		t.Errorf("backends: %+v", got.Backends)
	}
	for _, r := range got.Reasons {
		if r.Role == "mux" && r.Reason == "no_backend" && (r.PPS != 100+10 || r.Total != 300+10+0+70) {
			t.Errorf("reason: %+v", r)
		}
	}
	if n := got.Nodes[0]; n != (Node{Node: "mux1", Role: "mux", State: "ready", PPS: 1000, BPS: 80000, Drops: 100, Flows: 5, Revision: 9}) {
		t.Errorf("node: %+v", n)
	}
	if empty := Between(nil, nil); len(empty.Services) != 0 {
		t.Errorf("of nothing: %+v", empty)
	}
}

func TestHuman(t *testing.T) {
	for want, x := range map[string]float64{"0": 0, "0.5": .5, "9.9": 9.94, "10": 10.4, "999": 999.4, "1.00k": 999.6, "12.3k": 12345, "100k": 99960, "123k": 123456, "4.56M": 4.56e6, "1.00G": 999.9e6, "2.00T": 2e12, "3000P": 3e18} {
		if got := Human(x); got != want {
			t.Errorf("%v: %s, want %s", x, got, want)
		}
	}
}

func TestTableIsOrdered(t *testing.T) {
	r := Rates{Services: []Service{{Service: "b", PPS: 2}, {Service: "a", PPS: 1, Flows: 7}}}
	for by, want := range map[string]string{"": "ba", "SERVICE": "ab", "FLOWS": "ab", "PACKETS/S": "ba", "NONE": "ba"} {
		got := ""
		for _, row := range r.Table(Services, by)[1:] {
			got += row[0]
		}
		if got != want {
			t.Errorf("by %q: %s, want %s", by, got, want)
		}
	}
}

// press sends keys to a screen.
func press(t *testing.T, s Screen, keys ...string) (Screen, tea.Cmd) {
	t.Helper()
	var last tea.Cmd
	for _, k := range keys {
		msg := tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(k)}
		if k == "tab" {
			msg = tea.KeyMsg{Type: tea.KeyTab}
		}
		m, cmd := s.Update(msg)
		s, last = m.(Screen), cmd
	}
	return s, last
}

func TestScreen(t *testing.T) {
	s := NewScreen(t.Context(), func(context.Context) (*apiv1.StatusResponse, error) {
		return answerOf(report("mux1", 10, 1000, true)), nil
	}, time.Second, Services)
	shows := func(s Screen, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(s.View(), w) {
				t.Errorf("no %q on\n%s", w, s.View())
			}
		}
	}
	m, again := s.Update(s.askNow())
	s = m.(Screen)
	shows(s, "1 [services]", "waiting for a second report")
	if again == nil {
		t.Error("an answer must lead to the next question")
	}
	m, _ = s.Update(answer{answerOf(report("mux1", 12, 3000, true)), nil})
	s = m.(Screen)
	shows(s, "web      1.00k", "revision 9")
	s, _ = press(t, s, "3")
	shows(s, "3 [reasons]", "mux   forwarded   tx     1.00k      3000")
	m, _ = s.Update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("4s")})
	s = m.(Screen)
	shows(s, "4 [nodes]", "by node", "mux1  mux   ready")
	s, _ = press(t, s, "1", "p")
	m, _ = s.Update(answer{answerOf(report("mux1", 14, 3000, true)), nil})
	s = m.(Screen)
	shows(s, "paused", "web      1.00k")
	m, _ = s.Update(answer{nil, errors.New("manager: cannot be reached")})
	s = m.(Screen)
	shows(s, "manager: cannot be reached", "web      1.00k")
	m, _ = s.Update(tea.WindowSizeMsg{Width: 10, Height: 3})
	for _, line := range strings.Split(m.(Screen).View(), "\n") {
		if len([]rune(line)) > 10 {
			t.Errorf("line %q is wider than the screen", line)
		}
	}
	_, cmd := press(t, s, "j", "k", "q")
	if cmd == nil || cmd() != tea.Quit() {
		t.Error("q does not quit")
	}
}

// TestRatesOfAnswers: replies to servers' own connections count for the node and for the VIP's
// service.
func TestRatesOfAnswers(t *testing.T) {
	with := func(second int64, packets uint64) *apiv1.NodeStatus {
		n := report("mux1", second, 1000, true)
		n.Answers = []*apiv1.AnswerStatus{{Vip: "203.0.113.20", Service: "crawler", Packets: packets, Bytes: 10 * packets}, {Vip: "203.0.113.21", Packets: packets}}
		return n
	}
	got := Between(answerOf(with(10, 100)), answerOf(with(12, 500)))
	if s := got.Services[0]; s != (Service{Service: "crawler", PPS: 200, BPS: 16000}) {
		t.Errorf("service: %+v", s)
	}
	if n := got.Nodes[0]; n.PPS != 400 || n.BPS != 16000 {
		t.Errorf("node: %+v", n)
	}
}

// TestRatesOfRefused: a VIP whose packets all exceed its limits, or come from denied sources, is
// not idle. VIPs without a refused packet are in no report, and counters of new tables start at 0.
func TestRatesOfRefused(t *testing.T) {
	with := func(node string, second int64, refused uint64) *apiv1.NodeStatus {
		n := report(node, second, 1000, true)
		n.Members = append(n.Members, &apiv1.MemberStatus{Service: "attacked", Vip: "203.0.113.20", Protocol: "tcp", Port: 80, Dip: "10.20.1.12", Alive: true})
		if refused > 0 {
			n.Refused = []*apiv1.RefusedStatus{{Vip: "203.0.113.20", Service: "attacked", Packets: refused, Bytes: 10 * refused}}
		}
		return n
	}
	got := Between(answerOf(with("mux1", 10, 0), with("mux2", 10, 900), with("mux3", 10, 900)), answerOf(with("mux1", 12, 4000), with("mux2", 12, 1000), with("mux3", 12, 200), with("mux4", 12, 5000)))
	if s := got.Services[0]; s != (Service{Service: "attacked", Refused: 2000 + 50 + 100, Backends: 1, Alive: 1}) {
		t.Errorf("the busiest service: %+v", s)
	}
	if rows := got.Table(Services, ""); strings.Join(rows[1], " ") != "attacked 0 0 2.15k 0 1/1" {
		t.Errorf("%q", rows)
	}
}

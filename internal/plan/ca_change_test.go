package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// caWorld is a cluster whose CA is being replaced: the certificates that each member accepts and
// presents, and the leader's view of them. Reports are delayed, members fail and return, and new
// leaders have no reports of disconnected nodes.
type caWorld struct {
	change CAChange
	now    time.Time
	// managers and nodes are keyed by name.
	managers, nodes map[string]*caMember
	leader          string
	unsealed        bool
}

// caMember is a manager or a node.
type caMember struct {
	up, able     bool
	former, next bool // the CAs that it accepts
	ofNext       bool // its certificate is from the next CA
	known        CAParty
	reported     bool
}

func (w *caWorld) facts() (f CAFacts) {
	list := func(of map[string]*caMember, managers bool) (out []CAParty) {
		for name, m := range of {
			p := CAParty{Name: name, Leads: name == w.leader}
			if m.reported && (m.up || !managers) { // a manager that is away has no registration
				p = m.known
				p.Leads = name == w.leader
			}
			p.Up = m.up
			out = append(out, p)
		}
		slices.SortFunc(out, func(a, b CAParty) int {
			if a.Name < b.Name {
				return -1
			}
			return 1
		})
		return out
	}
	f.Managers, f.Nodes, f.Unsealed = list(w.managers, true), list(w.nodes, false), w.unsealed
	return f
}

// report sends the member's state to the leader.
func (m *caMember) report(name string) {
	m.known, m.reported = CAParty{Name: name, Able: m.able, TrustsFormer: m.former, TrustsNext: m.next, OfNext: m.ofNext}, true
}

// follow brings a member to the current phase. A manager changes its accepted CAs only in its turn.
func (w *caWorld) follow(name string, m *caMember, manager bool) {
	if !m.up || !m.able {
		return
	}
	turn := !manager || w.change.Turn == name
	switch w.change.Phase {
	case CATrust:
		m.next = m.next || turn
	case CAIssue:
		m.ofNext = true
		m.next = m.next || !manager
	case CARetire, CADone:
		m.ofNext = true
		if turn && m.former {
			m.former, m.next = false, true
		}
	}
}

// accepts reports whether a accepts the certificate of b.
func accepts(a, b *caMember) bool {
	if b.ofNext {
		return a.next
	}
	return a.former
}

// TestCAChangeModel: for any order of reports, outages, leaders and commands, managers accept each
// other, managers and nodes that are not excluded accept each other, managers restart one at a
// time, and the replacement ends once all members are up and able.
func TestCAChangeModel(t *testing.T) {
	for range 10 {
		rapid.Check(t, caModel)
	}
}

// caModel is one run of TestCAChangeModel.
func caModel(t *rapid.T) {
	w := &caWorld{managers: map[string]*caMember{}, nodes: map[string]*caMember{}, now: time.Unix(0, 0), unsealed: true}
	for i := range rapid.IntRange(1, 3).Draw(t, "managers") {
		w.managers[fmt.Sprintf("m%d", i)] = &caMember{up: true, able: true, former: true}
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "nodes") {
		w.nodes[fmt.Sprintf("n%d", i)] = &caMember{up: true, able: rapid.Bool().Draw(t, "able"), former: true}
	}
	w.leader = "m0"
	for name, m := range w.managers {
		m.report(name)
	}
	for name, n := range w.nodes {
		n.report(name)
		if !n.able {
			w.change.Without = append(w.change.Without, name)
		}
	}
	w.change.Phase, w.change.Through = CATrust, CATrust
	if len(w.change.Unable(w.facts())) > 0 {
		t.Fatal("it may not begin, though all that are up and able are not left out")
	}
	step := func() {
		next, taken := w.change.Step(w.facts(), w.now)
		if !taken {
			return
		}
		if next.Phase == w.change.Phase && next.Turn != "" && w.change.Turn != "" {
			if before := w.managers[w.change.Turn]; before.up && before.why(w.change.Phase) {
				t.Fatalf("%s has the turn before %s used it", next.Turn, w.change.Turn)
			}
		}
		if next.Turn != "" && next.Turn != w.change.Turn {
			for name, m := range w.managers {
				if !m.up {
					t.Fatalf("%s may start anew while %s is away", next.Turn, name)
				}
			}
		}
		w.change, w.now = next, w.now.Add(time.Second)
	}
	command := func() {
		switch w.change.Phase {
		case CATrust:
			w.change.Through = CAIssue
		case CAIssue:
			w.change.Through = CARetire
		}
	}
	check := func() {
		for a, x := range w.managers {
			for b, y := range w.managers {
				if !accepts(x, y) {
					t.Fatalf("phase %s: manager %s does not accept %s: %+v %+v", w.change.Phase, a, b, *x, *y)
				}
			}
			for b, y := range w.nodes {
				if !slices.Contains(w.change.Without, b) && (!accepts(x, y) || !accepts(y, x)) {
					t.Fatalf("phase %s: manager %s and node %s do not accept each other: %+v %+v", w.change.Phase, a, b, *x, *y)
				}
			}
		}
		if w.change.Phase == CADone {
			for a, x := range w.managers {
				if x.former {
					t.Fatalf("manager %s accepts the former CA when it is done", a)
				}
			}
			for b, y := range w.nodes {
				if y.former && !slices.Contains(w.change.Without, b) {
					t.Fatalf("node %s accepts the former CA when it is done", b)
				}
			}
		}
	}
	any := func(of map[string]*caMember) (string, *caMember) {
		names := make([]string, 0, len(of))
		for name := range of {
			names = append(names, name)
		}
		slices.Sort(names)
		name := rapid.SampledFrom(names).Draw(t, "name")
		return name, of[name]
	}
	actions := map[string]func(*rapid.T){
		"step":    func(*rapid.T) { step() },
		"command": func(*rapid.T) { command() },
		"sealed": func(*rapid.T) {
			if w.change.Phase == CAIssue {
				w.unsealed = false
			}
		},
		"manager": func(*rapid.T) { name, m := any(w.managers); w.follow(name, m, true); m.report(name) },
		"manager fails": func(*rapid.T) {
			_, m := any(w.managers)
			m.up = !m.up
		},
		"leader": func(*rapid.T) {
			// A new leader has the registrations of managers and the reports of connected nodes.
			w.leader, _ = any(w.managers)
			for name, n := range w.nodes {
				if n.reported = n.up; n.up {
					n.report(name)
				}
			}
		},
	}
	if len(w.nodes) > 0 {
		actions["node"] = func(*rapid.T) { name, n := any(w.nodes); w.follow(name, n, false) }
		actions["report"] = func(*rapid.T) {
			if name, n := any(w.nodes); n.up {
				n.report(name)
			}
		}
		actions["node fails"] = func(*rapid.T) {
			name, n := any(w.nodes)
			if n.up = !n.up; n.up {
				n.report(name)
			}
		}
		actions["leave out"] = func(*rapid.T) {
			if name, _ := any(w.nodes); rapid.IntRange(0, 9).Draw(t, "rare") == 0 && !slices.Contains(w.change.Without, name) {
				w.change.Without = append(slices.Clone(w.change.Without), name)
			}
		}
	}
	names := slices.Sorted(maps.Keys(actions))
	for range rapid.IntRange(0, 300).Draw(t, "length") {
		actions[rapid.SampledFrom(names).Draw(t, "action")](t)
		check()
		if rapid.Bool().Draw(t, "at once") {
			step()
		}
	}
	for _, of := range []map[string]*caMember{w.managers, w.nodes} {
		for _, m := range of {
			m.up = true
		}
	}
	w.unsealed = false
	for range 100 {
		for name, m := range w.managers {
			w.follow(name, m, true)
			m.report(name)
		}
		for name, n := range w.nodes {
			w.follow(name, n, false)
			n.report(name)
		}
		command()
		step()
		check()
	}
	if w.change.Phase != CADone {
		t.Fatalf("all are up: phase %s waits for %v", w.change.Phase, w.change.Waits(w.facts()))
	}
}

// why reports whether a member lacks the change of a phase.
func (m *caMember) why(phase CAPhase) bool {
	return phase == CATrust && !m.next || phase == CARetire && m.former
}

// TestCAChangeWaits: Waits names each member that the change waits for with the reason, and leaves
// out excluded nodes.
func TestCAChangeWaits(t *testing.T) {
	c := CAChange{Phase: CATrust, Through: CATrust, Without: []string{"n3"}}
	f := CAFacts{
		Managers: []CAParty{{Name: "m1", Up: true, Able: true, TrustsNext: true}, {Name: "m2"}},
		Nodes:    []CAParty{{Name: "n1", Up: true}, {Name: "n2", Up: true, Able: true, Error: "disk full"}, {Name: "n3"}},
	}
	want := []CAWait{
		{CAWaitManager, "m2", caAway}, {CAWaitNode, "n1", CAOld}, {CAWaitNode, "n2", caNoTrust + ": disk full"},
	}
	if got := c.Waits(f); !slices.Equal(got, want) {
		t.Errorf("waits for %v, want %v", got, want)
	}
	if got, want := c.Unable(f), want[:2]; !slices.Equal(got, want) {
		t.Errorf("unable are %v, want %v", got, want)
	}
	f.Managers, f.Nodes = f.Managers[:1], nil
	if got := c.Waits(f); len(got) != 1 || got[0].Kind != CAWaitCommand {
		t.Errorf("when all have it: %v, want the command", got)
	}
	c.Phase, c.Through, f.Unsealed = CAIssue, CARetire, true
	f.Managers[0].OfNext = true
	if got := c.Waits(f); len(got) != 1 || got[0].Kind != CAWaitStore {
		t.Errorf("with keys that are sealed with the former secret: %v", got)
	}
	// A leader without a report of a member does not assume that the member accepts only the next
	// CA.
	c.Phase, f = CARetire, CAFacts{Managers: []CAParty{{Name: "m1"}}}
	if got := c.Waits(f); len(got) != 1 || got[0] != (CAWait{CAWaitManager, "m1", caAway}) {
		t.Errorf("without a report of m1: %v", got)
	}
}

package manager

import (
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
)

// healthKey is the natural key of an endpoint in a HealthReport.
type healthKey struct {
	vni           uint32
	vip, protocol string
	port, portEnd uint32
}

func healthKeyOf(e *apiv1.EndpointHealth) healthKey {
	return healthKey{e.GetVni(), e.GetVip(), e.GetProtocol(), e.GetPort(), e.GetPortEnd()}
}

// What a report says of a member. In a full report unknown is the same as nothing.
const (
	saidAlive = iota
	saidDead
	saidUnknown
)

// healthMerge is reports in one.
type healthMerge struct {
	full    bool
	order   []healthKey
	members map[healthKey]map[uint32]int
	// words are those of members of which something is said, and which have any.
	words map[healthKey]map[uint32]string
}

func newHealthMerge(h *apiv1.HealthReport) *healthMerge {
	m := &healthMerge{full: h.GetFull(), members: map[healthKey]map[uint32]int{}, words: map[healthKey]map[uint32]string{}}
	m.add(h)
	return m
}

// add puts what a report says in the place of what was said of the same members.
func (m *healthMerge) add(h *apiv1.HealthReport) {
	for _, e := range h.GetEndpoints() {
		of := m.of(healthKeyOf(e))
		for said, ids := range [][]uint32{saidAlive: e.GetAlive(), saidDead: e.GetDead(), saidUnknown: e.GetUnknown()} {
			for _, id := range ids {
				of[id] = said
				delete(m.words[healthKeyOf(e)], id)
			}
		}
		for id, text := range wordsIn(e) {
			if said, known := of[id]; known && said != saidUnknown {
				m.say(healthKeyOf(e), id, text)
			}
		}
	}
}

// set puts what is said of one member in the place of what was, words included.
func (m *healthMerge) set(key healthKey, id uint32, said word) {
	m.of(key)[id] = said.said
	delete(m.words[key], id)
	if said.said != saidUnknown {
		m.say(key, id, said.text)
	}
}

// say puts a member's words in the place of those it had.
func (m *healthMerge) say(key healthKey, id uint32, text string) {
	if text == "" {
		return
	}
	of := m.words[key]
	if of == nil {
		of = map[uint32]string{}
		m.words[key] = of
	}
	of[id] = text
}

// wordsIn are the words that a report has of members; nil for none.
func wordsIn(e *apiv1.EndpointHealth) map[uint32]string {
	if len(e.GetWords()) == 0 {
		return nil
	}
	out := map[uint32]string{}
	for _, w := range e.GetWords() {
		for _, id := range w.GetMembers() {
			out[id] = w.GetWords()
		}
	}
	return out
}

func (m *healthMerge) of(key healthKey) map[uint32]int {
	of := m.members[key]
	if of == nil {
		of = map[uint32]int{}
		m.members[key] = of
		m.order = append(m.order, key)
	}
	return of
}

// report is all of it: endpoints in the order in which they came up, members by id.
func (m *healthMerge) report() *apiv1.HealthReport {
	out := &apiv1.HealthReport{Full: m.full}
	for _, key := range m.order {
		e := &apiv1.EndpointHealth{
			Vni: key.vni, Vip: key.vip, Protocol: key.protocol, Port: key.port, PortEnd: key.portEnd, Words: convert.ToHealthWords(m.words[key]),
		}
		for id, said := range m.members[key] {
			switch {
			case said == saidAlive:
				e.Alive = append(e.Alive, id)
			case said == saidDead:
				e.Dead = append(e.Dead, id)
			case !m.full:
				e.Unknown = append(e.Unknown, id)
			}
		}
		if len(e.Alive)+len(e.Dead)+len(e.Unknown) == 0 {
			continue
		}
		slices.Sort(e.Alive)
		slices.Sort(e.Dead)
		slices.Sort(e.Unknown)
		out.Endpoints = append(out.Endpoints, e)
	}
	return out
}

// mergeHealth is one report that says what both say, the later one last. Neither is modified.
func mergeHealth(earlier, later *apiv1.HealthReport) *apiv1.HealthReport {
	if later.GetFull() {
		return later
	}
	m := newHealthMerge(earlier)
	m.add(later)
	return m.report()
}

// unsaid takes back what a report says.
func unsaid(h *apiv1.HealthReport) *apiv1.HealthReport {
	out := &apiv1.HealthReport{}
	for _, e := range h.GetEndpoints() {
		out.Endpoints = append(out.Endpoints, &apiv1.EndpointHealth{
			Vni: e.GetVni(), Vip: e.GetVip(), Protocol: e.GetProtocol(), Port: e.GetPort(), PortEnd: e.GetPortEnd(),
			Unknown: slices.Concat(e.GetAlive(), e.GetDead()),
		})
	}
	return out
}

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

// Health of a member in a report. In a full report unknown is the same as absent.
const (
	saidAlive = iota
	saidDead
	saidUnknown
)

// healthMerge is the merged content of several reports.
type healthMerge struct {
	full    bool
	order   []healthKey
	members map[healthKey]map[uint32]int
	// words holds the reasons of members with a known health, if they have any.
	words map[healthKey]map[uint32]string
}

func newHealthMerge(h *apiv1.HealthReport) *healthMerge {
	m := &healthMerge{full: h.GetFull(), members: map[healthKey]map[uint32]int{}, words: map[healthKey]map[uint32]string{}}
	m.add(h)
	return m
}

// add replaces the health of the members in a report.
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

// set replaces the health and the reason of one member.
func (m *healthMerge) set(key healthKey, id uint32, said word) {
	m.of(key)[id] = said.said
	delete(m.words[key], id)
	if said.said != saidUnknown {
		m.say(key, id, said.text)
	}
}

// say replaces the reason of a member, unless text is empty.
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

// wordsIn returns the reasons of members in a report, or nil if there are none.
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

// report returns the merged report: endpoints in the order in which they were added, members by id.
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

// mergeHealth returns one report with the content of both; later takes precedence. Neither is
// modified.
func mergeHealth(earlier, later *apiv1.HealthReport) *apiv1.HealthReport {
	if later.GetFull() {
		return later
	}
	m := newHealthMerge(earlier)
	m.add(later)
	return m.report()
}

// unsaid returns the report that revokes another one.
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

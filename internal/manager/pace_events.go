package manager

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// staleAfter is how long a connected node may go without obeying its newest plan until that is told.
const staleAfter = 10 * time.Second

// paceEvents tells which nodes do not keep up. It belongs to one goroutine.
type paceEvents struct {
	m *Manager
	// late are the nodes that do not obey all there is for them.
	late map[string]lateness
}

// lateness is what a node has to reach to be told to keep up, and since when it has not: one that is given plan after plan
// is always behind the last.
type lateness struct {
	revision int64
	since    time.Time
}

func newPaceEvents(m *Manager) *paceEvents { return &paceEvents{m, map[string]lateness{}} }

// run looks at all nodes once in a while until ctx ends.
func (p *paceEvents) run(ctx context.Context) {
	for {
		select {
		case <-p.m.o.Clock.After(stuckEvery):
			p.round()
		case <-ctx.Done():
			return
		}
	}
}

func (p *paceEvents) round() {
	m, now := p.m, p.m.o.Clock.Now()
	nodes, revision := m.reachedRevisions()
	late := map[string]lateness{}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		reached, was := nodes[name], p.late[name]
		switch {
		case reached >= revision || was.revision > 0 && reached >= was.revision:
			if m.events.last(string(lb.KindNode), name, latchPace, "").reason == reasonPlanStale {
				m.objectEvent(lb.KindNode, name, reasonPlanCurrent, "keeps up with its plan again")
			}
			if reached < revision {
				late[name] = lateness{revision, now}
			}
		case was.revision == 0:
			late[name] = lateness{revision, now}
		default:
			late[name] = was
			if now.Sub(was.since) >= staleAfter {
				m.objectEvent(lb.KindNode, name, reasonPlanStale, "has not obeyed revision %d for %s: it obeys %d", was.revision, staleAfter, reached)
			}
		}
	}
	p.late = late
}

package manager

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// staleAfter is how long a connected node may go without applying its newest plan before an event
// is recorded.
const staleAfter = 10 * time.Second

// paceEvents records which nodes do not keep up. It belongs to one goroutine.
type paceEvents struct {
	m *Manager
	// late holds the nodes that have not applied all updates for them.
	late map[string]lateness
}

// lateness holds the revision that a node must reach to count as up to date, and since when it has
// not. The newest revision would not do, because a node that gets plan after plan is always behind
// the last one.
type lateness struct {
	revision int64
	since    time.Time
}

func newPaceEvents(m *Manager) *paceEvents { return &paceEvents{m, map[string]lateness{}} }

// run checks all nodes periodically until ctx ends.
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

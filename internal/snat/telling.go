package snat

import (
	"maps"
	"time"
)

// telling is the ack barrier of the allocator: it holds grants back until every eligible mux has
// acknowledged the revision of their commit. A mux that leaves a revision unacknowledged for too
// long is not eligible until it has acknowledged everything.
type telling struct {
	silence time.Duration
	// opening is the time until which muxes that have not reported may be silent.
	opening time.Time
	// revision is that of the last commit.
	revision int64
	muxes    map[string]*muxState
	queue    []told
	// said holds answers that may be sent.
	said []Answer
	// lost are muxes that lost eligibility and are not reported yet.
	lost     []string
	silences uint64
}

type muxState struct {
	acked    int64
	eligible bool
	// heard: it acknowledged something since the allocator was opened.
	heard bool
}

type told struct {
	revision int64
	at       time.Time
	answers  []Answer
}

func (t *telling) open(rules Rules, revision int64, muxes []string, now time.Time) {
	t.silence, t.opening, t.revision, t.muxes = rules.Silence, now.Add(max(rules.Opening, rules.Silence)), revision, make(map[string]*muxState, len(muxes))
	for _, m := range muxes {
		t.muxes[m] = &muxState{eligible: true}
	}
	t.queue = append(t.queue, told{revision: revision, at: now})
}

func (t *telling) say(a Answer) { t.said = append(t.said, a) }

// tell queues answers until muxes have acknowledged a revision.
func (t *telling) tell(now time.Time, revision int64, answers ...Answer) {
	for i := range answers {
		answers[i].Revision, answers[i].Stored = revision, now
	}
	t.queue = append(t.queue, told{revision, now, answers})
}

// Ack records the revision that a mux has applied.
func (t *telling) Ack(mux string, revision int64) {
	m := t.muxes[mux]
	if m == nil {
		m = &muxState{}
		t.muxes[mux] = m
	}
	// The revision decreases when the mux restarts, or connects to a manager that is a little
	// behind. It may then lack leases that were granted.
	m.eligible = revision >= t.revision || m.eligible && revision >= m.acked
	m.acked, m.heard = revision, true
}

// Keep removes muxes that are not in the map, so that grants do not wait for a deleted one.
func (t *telling) Keep(muxes map[string]bool) {
	maps.DeleteFunc(t.muxes, func(name string, _ *muxState) bool { return !muxes[name] })
}

// Eligible reports whether grants wait for the mux.
func (t *telling) Eligible(mux string) bool { return t.muxes[mux] != nil && t.muxes[mux].eligible }

// Tick ends the eligibility of muxes that were silent too long.
func (t *telling) Tick(now time.Time) {
	for _, q := range t.queue {
		if now.Sub(q.at) < t.silence {
			return
		}
		for name, m := range t.muxes {
			switch {
			case !m.eligible || m.acked >= q.revision:
			case m.heard:
				m.eligible = false
				t.lost = append(t.lost, name)
				t.silences++
			case !now.Before(t.opening): // it was not connected when the term began
				m.eligible = false
			}
		}
	}
}

// Lost removes and returns the muxes that lost eligibility.
func (t *telling) Lost() []string {
	out := t.lost
	t.lost = nil
	return out
}

// due returns when Tick is due if muxes do not acknowledge; zero: no mux is awaited.
func (t *telling) due() (due time.Time) {
	for _, q := range t.queue {
		at := q.at.Add(t.silence)
		for _, m := range t.muxes {
			switch {
			case !m.eligible || m.acked >= q.revision:
			case m.heard:
				return at
			case due.IsZero():
				due = at
				if at.Before(t.opening) {
					due = t.opening
				}
			}
		}
		if !due.IsZero() && at.After(due) {
			break
		}
	}
	return due
}

// release removes and returns the answers that every eligible mux has acknowledged.
func (t *telling) release() (out []Answer) {
	n := 0
	for ; n < len(t.queue) && t.acked(t.queue[n].revision); n++ {
		out = append(out, t.queue[n].answers...)
	}
	if t.queue = t.queue[n:]; len(t.queue) == 0 {
		t.queue = nil
	}
	return out
}

func (t *telling) acked(revision int64) bool {
	for _, m := range t.muxes {
		if m.eligible && m.acked < revision {
			return false
		}
	}
	return true
}

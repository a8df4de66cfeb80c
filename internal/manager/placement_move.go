package manager

import (
	"time"

	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// moveLinger is how long muxes keep a VIP after others announce it: routers need a moment to use the new ways.
	moveLinger = time.Second
	// movePatience is how long muxes keep a VIP that others have and do not all announce.
	movePatience = 30 * time.Second
)

// move is a VIP that some muxes give up once others have it.
type move struct {
	// since is when the last mux was added, or when this term learnt of the move.
	since time.Time
	// added are the revisions by which muxes were told, as far as that was in this term.
	added map[string]int64
	// taken is since when the new muxes have it; zero while they do not.
	taken time.Time
	// over: those that are leaving may go.
	over bool
}

// watch looks at the moves and notes those that are over.
func (p *placement) watch(now time.Time) {
	for key, mv := range p.moves {
		stored, _ := p.m.view.place(key)
		switch taken, some := p.taken(key, mv, stored, now); {
		case len(stored.Muxes) == 0:
			// Nobody takes it: whoever has it keeps it.
		case !taken && (!some || now.Sub(mv.since) < movePatience):
			mv.taken = time.Time{}
		case mv.taken.IsZero():
			mv.taken = now
		case now.Sub(mv.taken) >= moveLinger:
			mv.over = true
			p.todo[key] = true
		}
	}
}

// taken tells whether the muxes of a VIP, as far as they are there, obey what they were told and announce it, where
// those that leave do; some: at least one of them does, or none of the others.
func (p *placement) taken(key place.Key, mv *move, stored plan.Place, now time.Time) (taken, some bool) {
	announced := false
	for _, name := range stored.Leaving {
		if s := p.seen[name]; s != nil {
			announced = announced || p.unheard(s, now) || s.advertises(key.VIP)
		}
	}
	taken, some = true, !announced
	for _, name := range stored.Muxes {
		s := p.seen[name]
		switch {
		case s == nil:
		case !s.connected():
			taken = taken && !p.unheard(s, now)
		case s.status.GetSyncedRevision() < mv.added[name] || announced && !s.advertises(key.VIP):
			taken = false
		default:
			some = true
		}
	}
	return taken && some, some
}

// unheard: the mux may well be there, but this manager does not lead for long.
func (p *placement) unheard(s *seenMux, now time.Time) bool {
	return (s.status == nil || s.status.GetLastSeen().AsTime().Before(p.began)) && now.Sub(p.began) < movePatience
}

// follow notes that a place was stored.
func (p *placement) follow(key place.Key, was, is plan.Place, revision int64, now time.Time) {
	if len(is.Leaving) == 0 {
		delete(p.moves, key)
		return
	}
	mv := p.moves[key]
	if mv == nil {
		mv = &move{since: now, added: map[string]int64{}}
		p.moves[key] = mv
	}
	mv.over = false
	had := map[string]bool{}
	for _, name := range was.All() {
		had[name] = true
	}
	for _, name := range is.Muxes {
		if !had[name] {
			mv.since, mv.taken, mv.added[name] = now, time.Time{}, revision
		}
	}
}

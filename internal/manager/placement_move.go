package manager

import (
	"time"

	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// moveLinger is how long muxes keep a VIP after others announce it, because routers need a
	// moment to use the new routes.
	moveLinger = time.Second
	// movePatience is how long muxes keep a VIP that others have but do not all announce.
	movePatience = 30 * time.Second
)

// move is the move of a VIP that some muxes give up once others have it.
type move struct {
	// since is the time when the last mux was added, or when this term first saw the move.
	since time.Time
	// added maps new muxes to the revision that added them, if that was in this term.
	added map[string]int64
	// taken is the time since which the new muxes have the VIP; zero while they do not.
	taken time.Time
	// over reports that the leaving muxes may lose the VIP.
	over bool
}

// watch updates the moves and marks those that are over.
func (p *placement) watch(now time.Time) {
	for key, mv := range p.moves {
		stored, _ := p.m.view.place(key)
		switch taken, some := p.taken(key, mv, stored, now); {
		case len(stored.Muxes) == 0:
			// No mux takes it, so those that have it keep it.
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

// taken reports whether the connected muxes of a VIP have applied the plan with it, and announce it
// if a leaving mux does. some reports whether at least one of them has, or no leaving mux announces
// it.
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

// unheard reports whether the mux may be up although it has not reported, because this manager has
// not led for long.
func (p *placement) unheard(s *seenMux, now time.Time) bool {
	return (s.status == nil || s.status.GetLastSeen().AsTime().Before(p.began)) && now.Sub(p.began) < movePatience
}

// follow updates the move of a VIP after its place was stored.
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

package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// A mux that hears nothing any more from nearly all members of many services at once suspects itself: health.Suspicion. It keeps
// the verdicts on members that are silent, for a time of grace, and wants to know what other muxes see:
//
//	Suspicions is poked when the suspicion begins or ends; Suspect tells which. While there is one, somebody asks the manager what
//	other muxes say of the members that this one checks, and hands the answer to OthersSay, again whenever it changes.
//	Members that others call dead fall at once, those that they call alive stay, and what nobody speaks of falls after the grace.

// Suspicions is poked when this mux begins to suspect itself, and when it no longer does.
func (a *Agent) Suspicions() <-chan struct{} { return a.suspicions }

// Suspect tells since when this mux suspects that it is itself what is broken; zero: it does not.
func (a *Agent) Suspect() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.roster.doubt.Since()
}

// OthersSay takes what other muxes see of members, by their own checks: Alive of those that at least one of them reaches, Dead of
// those that others ask and none reaches. Full, or not, as in what hosts say. Nothing of it counts once the suspicion is over.
func (a *Agent) OthersSay(v plan.Verdicts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followLocked(a.roster.othersSay(v, a.o.Clock.Now()), "by what other muxes see")
}

// Tick does what is due by time: members whose damping is over come up, and those that were held long enough fall.
func (a *Agent) Tick() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.o.Clock.Now()
	if due := a.roster.due(); !due.IsZero() && !now.Before(due) {
		a.followLocked(a.roster.tick(now), "by time")
	}
}

// due is when Tick has something to do; zero: never, by what is known.
func (a *Agent) due() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dueTold = a.roster.due()
	return a.dueTold
}

// followLocked makes everything follow what one pass over the members changed, and says why in the log.
func (a *Agent) followLocked(c change, because string) {
	if c.doubts {
		a.tellDoubtLocked()
	}
	if len(c.paths) > 0 {
		a.logPathsLocked(c.paths)
	}
	if c.asked || !a.roster.due().Equal(a.dueTold) {
		// A VIP may wait for just this one, and Run is to know what is due.
		notify.Send(a.speak)
	}
	if c.empty() {
		return
	}
	a.obeyLocked(c)
	a.logFlips(c, because)
	notify.Send(a.speak)
	notify.Send(a.changed)
	notify.Send(a.schedules.due)
}

// tellDoubtLocked says how far the mux trusts itself.
func (a *Agent) tellDoubtLocked() {
	notify.Send(a.changed)
	notify.Send(a.suspicions)
	switch a.roster.doubt.Phase() {
	case health.Trusting:
		a.o.Log.Warn("health", "suspicion", "over: members of many services answer, or are dead")
	case health.Holding:
		a.o.Log.Warn("health", "suspicion", "nothing comes back from many services: this mux may be cut off, verdicts are held",
			"for", a.roster.doubt.Grace)
	case health.Conceding:
		a.o.Log.Warn("health", "suspicion", "the time of grace is over: members fall that no other mux calls alive")
	}
}

// maxFlipLines is how many flips of one pass are logged one by one.
const maxFlipLines = 16

// logFlips says what members turned.
func (a *Agent) logFlips(c change, because string) {
	if len(c.flips) > maxFlipLines {
		alive := 0
		for _, f := range c.flips {
			if f.Alive {
				alive++
			}
		}
		a.o.Log.Info("health", "because", because, "members came up", alive, "members went down", len(c.flips)-alive)
		return
	}
	for _, f := range c.flips {
		a.o.Log.Info("health", "vip", f.Endpoint.VIP, "protocol", f.Endpoint.Protocol, "port", f.Endpoint.Port,
			"backend", f.of.address(), "member", f.Member, "alive", f.Alive, "because", f.of.explain())
	}
}

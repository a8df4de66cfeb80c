package mux

import (
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// A mux that suddenly gets no reply from nearly all members of many services considers itself
// isolated (health.Suspicion). It holds the verdicts on silent members for a grace period and uses
// the reports of other muxes:
//
//   - Suspicions is notified when isolation begins or ends, and Suspect returns since when.
//   - During isolation, the caller requests the reports of other muxes on this mux's members
//     from the manager, and passes them to OthersSay whenever they change.
//   - Members that others report dead fall immediately, those reported alive stay up, and
//     members without a report fall after the grace period.

// Suspicions is notified when this mux begins or stops to consider itself isolated.
func (a *Agent) Suspicions() <-chan struct{} { return a.suspicions }

// Suspect returns since when this mux considers itself isolated; zero: it does not.
func (a *Agent) Suspect() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.roster.doubt.Since()
}

// OthersSay applies the reports of other muxes, from their own checks: Alive are members that at
// least one of them reaches, Dead those that others check and none reaches. Full has the same
// meaning as in host reports. Nothing is stored when this mux is not isolated.
func (a *Agent) OthersSay(v plan.Verdicts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followLocked(a.roster.othersSay(v, a.o.Clock.Now()), "by what other muxes see")
}

// Tick applies changes that are due by time: members whose damping ended come up, and members that
// were held for the grace period fall.
func (a *Agent) Tick() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.o.Clock.Now()
	if due := a.roster.due(); !due.IsZero() && !now.Before(due) {
		a.followLocked(a.roster.tick(now), "by time")
	}
}

// due returns when Tick has work; zero: not known to be needed.
func (a *Agent) due() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dueTold = a.roster.due()
	return a.dueTold
}

// followLocked applies and logs the effect of one pass over the member table. because is the logged
// reason.
func (a *Agent) followLocked(c change, because string) {
	if c.doubts {
		a.tellDoubtLocked()
	}
	if len(c.paths) > 0 {
		a.logPathsLocked(c.paths)
	}
	if c.asked || !a.roster.due().Equal(a.dueTold) {
		// A VIP may wait for this member, and Run must set its timer.
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

// tellDoubtLocked reports and logs the isolation phase.
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

// maxFlipLines is how many transitions of one pass are logged one by one.
const maxFlipLines = 16

// logFlips logs the health transitions of members.
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

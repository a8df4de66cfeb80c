package mux

import (
	"time"

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
func (a *Agent) Suspect() time.Time { return time.Time{} }

// OthersSay takes what other muxes see of members, by their own checks: Alive of those that at least one of them reaches, Dead of
// those that others ask and none reaches. Full, or not, as in what hosts say. Nothing of it counts once the suspicion is over.
func (a *Agent) OthersSay(plan.Verdicts) {}

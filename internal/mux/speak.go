package mux

import (
	"context"
	"time"
)

// Timing of the agent's loops.
const (
	// signOfLife is how often the speaker hears the wanted state again: it counts the hold time from the last word,
	// and one that died is replaced within this.
	signOfLife = 500 * time.Millisecond
)

// Run tells the speaker, and checks in the place of hosts that are silent, until ctx ends.
func (a *Agent) Run(ctx context.Context) {
	for {
		a.StandIn()
		a.Speak(ctx)
		select {
		case <-ctx.Done():
			return
		case <-a.speak:
		case <-a.o.Clock.After(signOfLife):
		}
	}
}

// Speak makes the speaker announce what is wanted at this moment. Nothing is said before a plan was applied: a
// restarted agent must not take back what it does not know yet.
func (a *Agent) Speak(ctx context.Context) {
	a.speaking.Lock()
	defer a.speaking.Unlock()
	a.mu.Lock()
	ready := a.ready && !a.left
	a.mu.Unlock()
	if !ready || ctx.Err() != nil {
		return
	}
	_, err := a.o.Ensure(ctx)
	if err == nil {
		// Read after Ensure, which may take long.
		a.mu.Lock()
		want, _ := a.announcementLocked().state()
		a.mu.Unlock()
		err = a.o.Speaker.Set(ctx, want)
	}
	status, statusErr := a.o.Speaker.Status(ctx)
	if err == nil {
		err = statusErr
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil && ctx.Err() == nil && (a.speakerFault == nil || a.speakerFault.Error() != err.Error()) {
		a.o.Log.Error("bgp speaker", "error", err)
	}
	a.speakerFault = err
	if !sameStatus(a.status, status) {
		poke(a.changed)
	}
	a.status = status
}
